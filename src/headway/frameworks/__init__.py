"""From ranks to a process group, one module per framework, each imported only where it is used."""
