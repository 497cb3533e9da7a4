//! Cells beside programs of others: HTTP clients, servers of addresses, and Linux's TCP/IP over lines that lose frames.
//!
//! | module | the other side |
//! |---|---|
//! | [`http`] | curl, wrk, ApacheBench, Python's and Go's clients, a browser |
//! | [`addresses`] | dnsmasq, radvd and Kea, which hand out addresses |
//! | [`line`] | Linux's TCP/IP, over a line that loses, reorders, delays and duplicates frames |
//! | [`processors`] | machines of 16 and 64 processors, with cells that use them |
//!
//! Each test makes a network namespace, and runs the programs in it.

mod addresses;
mod http;
mod line;
mod processors;
mod program;
