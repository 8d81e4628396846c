"""Jobs of kind ``rados``: sets of rados, learning from their files, attacks on them."""
