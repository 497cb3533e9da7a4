//! The service of the multicore IncludeOS paper (IV): a number arrives by UDP, all cores count the primes below it, and
//! the sum goes back by UDP.
//!
//! A request is a decimal number in ASCII, `1000000`; its answer is the number and the count, `1000000 78498`. The
//! answer to a malformed request is a line that begins with `error:`.
//!
//! This library has the parts that can be tested without a machine: [`request`], [`count`] and [`job`]. The image has
//! the service and the batch job.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod count;
pub mod job;
pub mod request;
