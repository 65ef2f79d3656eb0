"""The exchanges of SASL, a module for each kind of mechanism, without sockets."""
