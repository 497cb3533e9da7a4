//! Runs the workloads on mimalloc.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    isola_memory_compare::main(|_| {});
}
