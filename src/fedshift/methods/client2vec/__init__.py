"""Client2Vec: the method, its client indices and the encoders that they read, with a catalogue of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedshift.catalogue import Catalogue

if TYPE_CHECKING:
    from fedshift.methods.client2vec.encoder import Encoder
    from fedshift.methods.client2vec.index import ClientIndex

INDICES: Catalogue[ClientIndex] = Catalogue(
    "INDICES",
    __name__,
    kind="client index",
    base=".index:ClientIndex",
    entries={
        "dsa-ign": ".dsa_ign:DSAIGN",
        "feature-average": ".simple:FeatureAverage",
        "class-prototypes": ".simple:ClassPrototypes",
        "model-weights": ".simple:ModelWeights",
        "random": ".simple:RandomDirections",
        "file": ".file:IndexFile",
    },
)
ENCODERS: Catalogue[Encoder] = Catalogue(
    "ENCODERS",
    __name__,
    kind="encoder",
    base=".encoder:Encoder",
    entries={
        "offline": ".offline:Offline",
        "clip": ".clip:CLIP",
    },
)
