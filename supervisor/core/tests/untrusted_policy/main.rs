//! A policy that makes wrong calls: they are rejected, and no resource has two owners after any sequence of calls.

mod bench;
mod links;
mod sequences;
mod single_calls;
mod surviving;
