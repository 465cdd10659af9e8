"""How a step is carried out: a network and a machine in; precision, layout, compiler out."""
