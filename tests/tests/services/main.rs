//! Services in cells from the perspective of their clients: third-party programs and libraries, misbehaving clients,
//! and thousands of connections.
//!
//! | module | contents |
//! |---|---|
//! | [`cache`] | the cached blocks of volumes: budgets, and memory that a full cache gives back |
//! | [`clients`] | a client library and Debian's libmemcached tools, with the server in a cell and standalone |
//! | [`misuse`] | slow readers, half-closed and reset connections, garbage |
//! | [`crowd`] | thousands of connections |
//! | [`cores`] | core hot-plug and hot-unplug under load |
//! | [`lending`] | core lending |
//! | [`memory_lending`] | memory lending |
//! | [`grid`] | processor time by activity |
//! | [`primes`] | a service that wakes its cores |
//! | [`idle`] | idle cells and an idle machine |
//! | [`growth`] | memory growth of a serving cell |
//! | [`reclaim`] | memory that a full server gives back |
//! | [`resize`] | memory plug and unplug on request under load |
//! | [`profile`] | profiles of a cell with known functions |
//! | [`trace`] | traces of a serving cell |
//! | [`faults`] | a service beside cells that crash |

mod cache;
mod clients;
mod cores;
mod crowd;
mod faults;
mod grid;
mod growth;
mod idle;
mod lending;
mod memory_lending;
mod misuse;
mod primes;
mod profile;
mod reclaim;
mod resize;
mod trace;
