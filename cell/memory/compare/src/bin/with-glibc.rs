//! The workloads on glibc.

#[global_allocator]
static ALLOCATOR: std::alloc::System = std::alloc::System;

fn main() {
    isola_memory_compare::main(|_| {});
}
