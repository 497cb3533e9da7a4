# Waits in real time when memcached's suite advances the server's clock, which needs a debug build of memcached.
package RealTime;

use strict;
use warnings;
use lib 't/lib';

# `prove` itself loads this module as well, possibly in a folder without the suite's library, and is not affected.
if (-e 't/lib/MemcachedTest.pm') {
    require MemcachedTest;
    no warnings 'redefine';
    # Half a second longer, because the server's clock has a resolution of one second.
    *MemcachedTest::mem_move_time = sub { select undef, undef, undef, $_[1] + 0.5 };
}

1;
