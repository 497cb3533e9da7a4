//! The packages below `isola` are not dependencies of the application, so it cannot link them.
#![forbid(unsafe_code)]

extern crate isola_machine; //~ E0463
extern crate isola_bare; //~ E0463
extern crate isola_platform; //~ E0463

fn main() {}
