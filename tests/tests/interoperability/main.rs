//! Interoperability with third-party programs: HTTP clients, address servers, and Linux's TCP/IP over faulty links.
//!
//! | module | peer |
//! |---|---|
//! | [`http`] | curl, wrk, ApacheBench, Python's and Go's clients, a browser |
//! | [`addresses`] | dnsmasq, radvd and Kea, which assign addresses |
//! | [`line`] | Linux's TCP/IP, over a link that loses, reorders, delays and duplicates frames |
//! | [`processors`] | none; machines of 16 and 64 processors |
//!
//! Each test of the first three modules creates a network namespace, and runs the programs in it.

mod addresses;
mod http;
mod line;
mod processors;
mod program;
