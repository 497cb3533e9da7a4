//! Services in cells, as their clients see them: programs and libraries that nobody here wrote, clients that
//! behave badly, and many at once.
//!
//! | module | what |
//! |---|---|
//! | [`clients`] | a client library and Debian's libmemcached tools, with the server in a cell and alone |
//! | [`misuse`] | slow readers, half-closed and reset connections, garbage |
//! | [`crowd`] | thousands of connections |
//! | [`cores`] | cores that come and go while a cell serves |
//! | [`lending`] | cores that a service borrows, and that go back |
//! | [`primes`] | a service that wakes its cores |
//! | [`idle`] | nobody asks, and nothing ticks |
//! | [`growth`] | a cell that gets more memory, or does not, while it serves |
//! | [`resize`] | a cell whose memory comes and goes on request while it serves |
//! | [`faults`] | a cell at work beside others that go wrong |

mod clients;
mod cores;
mod crowd;
mod faults;
mod growth;
mod idle;
mod lending;
mod misuse;
mod primes;
mod resize;
