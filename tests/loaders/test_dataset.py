"""Tiles for torch's own DataLoader."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from loaders import BatchLoader, RamTiles, TileDataset, collate
from loaders import dataset as module
from loaders.batch import crop_affine


@pytest.fixture(scope="module")
def tiles(store_path):
    return RamTiles.load(store_path)


def test_an_item_is_what_torch_users_expect(tiles):
    item = TileDataset(tiles)[3]
    assert set(item) == {"image", "speed", "index", "key"}
    assert (item["image"].shape, item["image"].dtype) == ((3, 32, 32), torch.uint8)
    assert (item["speed"].shape, item["speed"].dtype) == ((32, 32), torch.uint8)
    assert item["index"] == 3
    assert (item["image"].permute(1, 2, 0).numpy() == tiles.image[3]).all()


def test_it_is_a_sequence_of_tiles_times_crops(tiles):
    dataset = TileDataset(tiles, crop=8, crops_per_tile=3)
    assert len(dataset) == 3 * len(tiles)
    assert dataset[7]["index"] == 2
    assert dataset[-1]["index"] == len(tiles) - 1
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_items_are_the_samples_of_the_batch_loader(tiles):
    options = {"crop": 16, "augment": "d4", "crops_per_tile": 2, "seed": 9}
    dataset = TileDataset(tiles, **options)
    dataset.set_epoch(1)
    loader = BatchLoader(tiles, 8, **options)
    loader.set_epoch(1)
    order = loader.sampling.order(1)
    at = 0
    for batch in loader:
        for i in range(len(batch)):
            item = dataset[int(order[at])]
            assert (item["image"] == batch.image[i]).all()
            assert item["key"] == int(batch.key[i])
            at += 1
    assert at == len(dataset)


def test_the_affine_is_that_of_the_crop_after_its_symmetry(tiles):
    dataset = TileDataset(tiles, crop=16, augment="d4", georeference=True, seed=4)
    for i in range(12):
        item = dataset[i]
        w = dataset.sampling.crops(0, np.array([i]))
        y, x, op = (int(v[0]) for v in (w.y, w.x, w.op))
        expected = crop_affine(tiles.affine(i), y, x, op, 16)
        np.testing.assert_allclose(item["affine"], expected, rtol=0, atol=1e-6)
        assert item["crs"] == "EPSG:32637"


def test_it_pickles_as_bytes_not_pixels(tiles):
    dataset = TileDataset(tiles, crop=16, augment="d4")
    dataset.set_epoch(0)
    assert len(pickle.dumps(dataset)) < 1500
    assert (pickle.loads(pickle.dumps(dataset))[5]["image"] == dataset[5]["image"]).all()


def test_persistent_workers_follow_the_epoch(tiles):
    dataset = TileDataset(tiles, crop=8)
    dataset.set_epoch(0)
    loader = DataLoader(dataset, batch_size=32, num_workers=1, persistent_workers=True)
    first, again = (next(iter(loader))["image"].clone() for _ in range(2))
    dataset.set_epoch(1)
    other = next(iter(loader))["image"].clone()
    expected = torch.stack([dataset[i]["image"] for i in range(32)])
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(other, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_copied_once_and_needs_no_collation(tiles, workers):
    """With DataLoader's defaults: images channels last, pixels in one block."""
    options = {"crop": 16, "augment": "d4", "crops_per_tile": 2, "seed": 3}
    dataset = TileDataset(tiles, georeference=True, **options)
    dataset.set_epoch(0)
    for number, batch in enumerate(DataLoader(dataset, batch_size=6, num_workers=workers)):
        assert type(batch) is dict
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
        image, label, index = (batch[n].untyped_storage() for n in ("image", "speed", "index"))
        assert image.data_ptr() == label.data_ptr()
        assert index.nbytes() == 8 * len(batch["index"])
        for i in range(len(batch["index"])):
            item = dataset[number * 6 + i]
            assert torch.equal(batch["image"][i], item["image"])
            assert torch.equal(batch["speed"][i], item["speed"])
            assert (int(batch["index"][i]), int(batch["key"][i])) == (item["index"], item["key"])
            assert torch.equal(batch["affine"][i], item["affine"])
            assert batch["crs"][i] == item["crs"]
    assert number == -(-len(dataset) // 6) - 1


def assert_batches(batches, dataset):
    for number, batch in enumerate(batches):
        for i, index in enumerate(batch["index"].tolist()):
            item = dataset[number * 4 + i]
            assert torch.equal(batch["image"][i], item["image"])
            assert torch.equal(batch["speed"][i], item["speed"])
            assert (index, int(batch["key"][i])) == (item["index"], item["key"])


def test_a_batch_is_valid_for_as_long_as_any_view_of_it_is_referenced(tiles):
    dataset = TileDataset(tiles, crop=16, augment="d4", crops_per_tile=2)
    dataset.set_epoch(0)
    batches = []
    for batch in DataLoader(dataset, batch_size=4, num_workers=2):
        image = batch["image"].permute(0, 2, 3, 1).numpy()[:, 1:]  # of all but a row
        batches.append({**batch, "image": None, "rows": image})
    assert_batches(DataLoader(dataset, batch_size=4, num_workers=2), dataset)
    for number, batch in enumerate(batches):
        assert torch.equal(batch["speed"][0], dataset[number * 4]["speed"])
        rows = dataset[number * 4]["image"].permute(1, 2, 0).numpy()[1:]
        np.testing.assert_array_equal(batch["rows"][0], rows)


def test_workers_fill_the_blocks_of_batches_that_are_dropped(tiles):
    dataset = TileDataset(tiles, crops_per_tile=16)
    loader = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    places = [batch["image"].data_ptr() for _ in range(2) for batch in loader]
    assert len(places) == 256
    assert len(set(places)) <= 6  # two are prefetched, one is held, one is on its way


def test_memory_of_workers_that_have_ended_is_given_back(tiles):
    data = DataLoader(TileDataset(tiles), batch_size=4, num_workers=2)
    of_workers = []
    for _ in range(3):
        batches = list(data)
        of_workers.append({handle.pid for handle in module._attached})
        del batches
    assert all(len(workers) == 2 for workers in of_workers)
    assert not of_workers[0] & of_workers[1]


class Named(TileDataset):
    """Adds a name to every item."""

    def __getitems__(self, items):
        return [{**item, "name": str(item["index"])} for item in super().__getitems__(items)]


def brightened(items):
    batch = default_collate(items)
    batch["image"] = batch["image"] // 2
    batch["size"] = len(items)
    return batch


def with_a_name(items):
    return collate(items) | {"name": "a"}


def test_a_batch_that_a_collation_changes_in_a_worker_arrives_as_it_is(tiles):
    dataset = TileDataset(tiles)
    plain = list(DataLoader(dataset, batch_size=4))
    for collation in (brightened, with_a_name):
        batches = list(DataLoader(dataset, 4, num_workers=2, collate_fn=collation))
        for batch, other in zip(batches, plain, strict=True):
            wanted = other["image"] // 2 if collation is brightened else other["image"]
            assert torch.equal(batch["image"], wanted)
            assert torch.equal(batch["speed"], other["speed"])
            assert batch.get("size", batch.get("name")) == (4 if collation is brightened else "a")
    named = list(DataLoader(Named(tiles), 4, num_workers=2))
    assert [name for batch in named for name in batch["name"]] == [str(i) for i in range(32)]
    assert all(map(torch.equal, (b["image"] for b in named), (b["image"] for b in plain)))


@pytest.mark.parametrize("collation", [default_collate, collate])
def test_what_is_put_into_items_before_they_are_collated_is_kept(tiles, collation):
    def changed(items):
        items[1]["image"] = items[1]["image"] * 0
        items[2]["speed"].zero_()
        items[3]["name"] = items[4]["name"] = "a"
        return collation(items[:3])

    dataset = TileDataset(tiles)
    batch = next(iter(DataLoader(dataset, batch_size=5, collate_fn=changed)))
    assert len(batch["image"]) == 3
    assert not batch["image"][1].any()
    assert not batch["speed"][2].any()
    assert torch.equal(batch["image"][0], dataset[0]["image"])
    doubled = DataLoader(dataset, batch_size=5, collate_fn=lambda items: collation(items[:2] * 2))
    longer = next(iter(doubled))
    assert torch.equal(longer["image"][3], dataset[1]["image"])

    def swapped(items):
        items[0], items[1] = items[1], items[0]
        items[0]["image"] = items[0]["image"].clone()
        return collation(items)

    batch = next(iter(DataLoader(dataset, batch_size=3, collate_fn=swapped)))
    assert batch["index"].tolist() == [1, 0, 2]
    assert torch.equal(batch["image"][0], dataset[1]["image"])


def test_subsets_and_wrappers_work(tiles):
    class Wrapped(Dataset):
        def __len__(self):
            return len(tiles)

        def __getitem__(self, i):
            return TileDataset(tiles)[i] | {"twice": 2 * i}

    subset = Subset(TileDataset(tiles), [5, 2, 9])
    batch = next(iter(DataLoader(subset, batch_size=3)))
    assert batch["index"].tolist() == [5, 2, 9]
    wrapped = next(iter(DataLoader(Wrapped(), batch_size=4)))
    assert wrapped["twice"].tolist() == [0, 2, 4, 6]
    assert torch.equal(wrapped["image"][3], TileDataset(tiles)[3]["image"])


@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2, "multiprocessing_context": "forkserver"}]
)
def test_each_pass_draws_other_crops_and_a_state_goes_on(tiles, workers):
    """Those of the epochs from 0, whatever process draws them."""
    options = {"crop": 8, "augment": "d4", "crops_per_tile": 2}
    dataset, fixed = TileDataset(tiles, **options), TileDataset(tiles, **options)
    loader = DataLoader(dataset, batch_size=3, shuffle=True, **workers)

    def keys():
        return sorted(key for batch in loader for key in batch["key"].tolist())

    def wanted(epoch):
        fixed.set_epoch(epoch)
        return sorted(int(item["key"]) for item in map(fixed.__getitem__, range(len(fixed))))

    assert [keys(), keys()] == [wanted(0), wanted(1)]
    half = [dataset[item]["key"] for item in (4, 0, 4)]
    state = dataset.state_dict()
    dataset = TileDataset(tiles, **options)
    dataset.load_state_dict(state)
    again = dataset.__getitems__([0, 1, 4])
    assert [item["key"] for item in again] == [
        fixed.sampling.crops(epoch, np.array([item])).key[0]
        for item, epoch in ((0, 3), (1, 2), (4, 4))
    ]
    assert len({int(key) for key in half}) == 3
    dataset.set_epoch(1)
    assert dataset[4]["key"] == fixed[4]["key"]
