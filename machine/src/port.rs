//! The processor's I/O ports. Private to the crate, as any device may be behind a port.

use core::arch::asm;

macro_rules! accessors {
    ($($read:ident $write:ident $type:ty, $register:tt;)*) => {$(
        /// Reads a port.
        ///
        /// # Safety
        /// Reading the port must not break memory that Rust code relies on.
        #[allow(dead_code, reason = "every width has both directions")]
        pub(crate) unsafe fn $read(port: u16) -> $type {
            let value: $type;
            // SAFETY: the instruction touches no memory; the caller guarantees the same of the device.
            unsafe { asm!(concat!("in ", $register, ", dx"), lateout($register) value, in("dx") port, options(nomem, nostack)) };
            value
        }

        /// Writes a port.
        ///
        /// # Safety
        /// As for the read.
        #[allow(dead_code, reason = "every width has both directions")]
        pub(crate) unsafe fn $write(port: u16, value: $type) {
            // SAFETY: as for the read.
            unsafe { asm!(concat!("out dx, ", $register), in($register) value, in("dx") port, options(nomem, nostack)) };
        }
    )*};
}

accessors! {
    read_u8 write_u8 u8, "al";
    read_u16 write_u16 u16, "ax";
    read_u32 write_u32 u32, "eax";
}
