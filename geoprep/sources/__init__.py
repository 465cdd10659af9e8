"""Finds scenes in folders, archives, buckets and file patterns, and downloads them.

`find_scenes` finds those of a SpaceNet city, `images_and_labels` those of a user's own files.
`local_pattern` unpacks archives and downloads single files, `download_scenes` downloads the images
and labels of scenes, `list_files` and `download_files` a city from the public bucket.
"""
