"""Programs that run in an image on the nodes of a cluster; envbuild never imports them."""
