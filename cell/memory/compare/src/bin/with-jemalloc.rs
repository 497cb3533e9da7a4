//! Runs the workloads on jemalloc.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    isola_memory_compare::main(|_| {});
}
