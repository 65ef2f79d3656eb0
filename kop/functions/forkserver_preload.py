"""The modules that the fork server of functions has loaded: imported by it alone, and so by processes that it makes.

Owns: which modules and compiled code these are; that they stay in pages that all processes share.
Must not know: what is done with them.
"""

import encodings.idna  # noqa: F401  (the first look-up of a host loads it)
import gc
import multiprocessing.popen_forkserver
import multiprocessing.sharedctypes  # noqa: F401

import kop.functions.child
import kop.functions.code_check  # noqa: F401
from kop.allocator import share_arenas
from kop.client.message_codecs import compile_codecs

share_arenas(1)  # an idle instance keeps 1.5 MiB less than with an arena for its threads
compile_codecs()
# Python's garbage collector writes to what it looks at, and a page that is written is a process's own.
gc.collect()
gc.freeze()
