//! An application on bare hardware: a cell image.

#[doc(hidden)]
pub use isola_bare as bare;
pub use isola_bare::heap::CellHeap;

/// Breaking the rules on purpose, for tests of what happens then.
pub mod mishap {
    pub use isola_bare::machine::mishap::{Mishap, commit};
}

#[doc(hidden)]
#[macro_export]
macro_rules! isola_binary {
    ($main:path, $allocator:ty = $new:expr) => {
        $crate::on::bare::cell_image!(isola_app_begin, $allocator = $new);

        fn isola_app_begin() {
            $crate::begin($main);
        }
    };
}
