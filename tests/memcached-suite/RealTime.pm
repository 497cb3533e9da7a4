# Waits where memcached's suite asks the server to move its clock, a command of memcached's debug build.
package RealTime;

use strict;
use warnings;
use lib 't/lib';

# `prove` loads this too, in a folder without the suite's library below it or with it: it makes no difference there.
if (-e 't/lib/MemcachedTest.pm') {
    require MemcachedTest;
    no warnings 'redefine';
    # Half a second longer: the server's clock counts whole ones.
    *MemcachedTest::mem_move_time = sub { select undef, undef, undef, $_[1] + 0.5 };
}

1;
