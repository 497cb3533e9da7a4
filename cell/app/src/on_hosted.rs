//! An application in a Linux process.

pub use isola_gateway::linux;
#[doc(hidden)]
pub use isola_gateway::process::run;
#[doc(hidden)]
pub use isola_hosted as hosted;
pub use isola_hosted::heap::CellHeap;

#[doc(hidden)]
#[macro_export]
macro_rules! isola_binary {
    ($main:path, $allocator:ty = $new:expr) => {
        $crate::on::hosted::process!(isola_app_run, $allocator = $new);

        fn isola_app_run() -> i32 {
            $crate::on::run(isola_app_begin)
        }

        fn isola_app_begin() {
            $crate::begin($main);
        }
    };
}
