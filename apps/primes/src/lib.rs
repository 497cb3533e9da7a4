//! The service of the multicore IncludeOS paper (IV): a number comes by UDP, all cores count the primes below it,
//! the sum goes back by UDP.
//!
//! A request is a decimal number in ASCII, `1000000`; its answer is the number and the count, `1000000 78498`. What
//! is no request is answered with a line that begins with `error:`.
//!
//! Here is what can be tested without a machine: [`request`], [`count`] and [`job`]. The service itself is the image's, and so is
//! the batch job that it can be instead.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod count;
pub mod job;
pub mod request;
