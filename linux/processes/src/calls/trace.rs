//! The text of a call in a trace (`isola run --trace`), in the form of strace(1): paths and data as strings, flags by name,
//! other addresses as numbers.

use super::{Call, CallResult};
use crate::Errno;
use crate::thread::Thread;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use isola_linux_abi::numbers as linux;

/// The most bytes of data that a trace shows of a call, as strace.
const SHOWN_BYTES: u64 = 32;

/// A flag and its name.
type FlagName = (u32, &'static str);

macro_rules! names {
    ($($name:ident)*) => { &[$((linux::$name as u32, stringify!($name)),)*] };
}

const OPEN_FLAGS: &[FlagName] = names! {
    O_CREAT O_EXCL O_NOCTTY O_TRUNC O_APPEND O_NONBLOCK O_DIRECT O_LARGEFILE O_DIRECTORY O_NOFOLLOW O_NOATIME
    O_CLOEXEC O_PATH
};
const AT_FLAGS: &[FlagName] = names! {
    AT_SYMLINK_NOFOLLOW AT_REMOVEDIR AT_SYMLINK_FOLLOW AT_NO_AUTOMOUNT AT_EMPTY_PATH
};
const PROTECTIONS: &[FlagName] = names! { PROT_READ PROT_WRITE PROT_EXEC PROT_GROWSDOWN };
const MAP_FLAGS: &[FlagName] = names! {
    MAP_SHARED MAP_PRIVATE MAP_FIXED MAP_ANONYMOUS MAP_GROWSDOWN MAP_LOCKED MAP_NORESERVE MAP_POPULATE MAP_STACK
    MAP_HUGETLB MAP_FIXED_NOREPLACE
};
const CLONE_FLAGS: &[FlagName] = names! {
    CLONE_VM CLONE_FS CLONE_FILES CLONE_SIGHAND CLONE_PIDFD CLONE_VFORK CLONE_PARENT CLONE_THREAD CLONE_SYSVSEM
    CLONE_SETTLS CLONE_PARENT_SETTID CLONE_CHILD_CLEARTID CLONE_CHILD_SETTID
};
const WAIT_OPTIONS: &[FlagName] = names! { WNOHANG WUNTRACED WCONTINUED WEXITED WNOWAIT };

/// Returns set flags by their names, and the rest as a number.
fn flags(value: u64, names: &[FlagName]) -> String {
    let mut rest = value;
    let mut shown: Vec<String> = Vec::new();
    for (bits, name) in names {
        let bits = u64::from(*bits);
        if bits != 0 && rest & bits == bits {
            rest &= !bits;
            shown.push((*name).into());
        }
    }
    if rest != 0 || shown.is_empty() {
        shown.push(if rest == 0 { "0".into() } else { format!("{rest:#x}") });
    }
    shown.join("|")
}

/// Returns the flags of `open`: the access mode first.
fn open_flags(value: u64) -> String {
    let mode = ["O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE"][(value & 3) as usize];
    match value & !3 {
        0 => mode.into(),
        rest => format!("{mode}|{}", flags(rest, OPEN_FLAGS)),
    }
}

/// Returns bytes as a string of C.
fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in bytes {
        let _never_fails = match byte {
            b'"' | b'\\' => write!(text, "\\{}", char::from(*byte)),
            b'\n' => write!(text, "\\n"),
            b'\t' => write!(text, "\\t"),
            0x20..=0x7e => write!(text, "{}", char::from(*byte)),
            _ => write!(text, "\\{byte:o}"),
        };
    }
    text + "\""
}

/// Returns a number: small ones in decimal, as sizes and descriptors are, others as addresses.
fn number(word: u64) -> String {
    let signed = word as i64;
    match signed {
        0 => "0".into(),
        -65_535..65_536 => format!("{signed}"),
        // A negative descriptor or id, as 32 bits.
        _ if word >> 32 == 0 && (word as i32) < 0 && (word as i32) > -65_536 => format!("{}", word as i32),
        _ => format!("{word:#x}"),
    }
}

/// Returns data of the program, of which only the beginning is shown.
async fn data(thread: &Thread, address: u64, len: u64) -> String {
    let mut bytes = alloc::vec![0; len.min(SHOWN_BYTES) as usize];
    match thread.memory.read_to(address, &mut bytes).await {
        Ok(()) => quoted(&bytes) + if len > SHOWN_BYTES { "..." } else { "" },
        Err(_) => number(address),
    }
}

/// Returns whether a call gets data by a parameter named `address`, with its length in `len`.
fn takes_data(name: &str) -> bool {
    matches!(name, "write" | "pwrite64" | "sendto")
}

/// Returns whether a call returns data there.
fn returns_data(name: &str) -> bool {
    matches!(name, "read" | "pread64" | "recvfrom")
}

/// Returns a parameter of a call.
async fn parameter(thread: &Thread, call: &Call, index: usize, words: &[u64; 6]) -> String {
    let (name, word) = (call.parameters[index], words[index]);
    match (name, call.name) {
        ("path" | "new_path" | "target", _) | ("name", "memfd_create") if word != 0 => {
            match thread.memory.path(word).await {
                Ok(path) => quoted(&path),
                Err(_) => number(word),
            }
        }
        ("path" | "new_path" | "target", _) => "NULL".into(),
        ("directory" | "new_directory", _) if word as i32 == linux::AT_FDCWD => "AT_FDCWD".into(),
        ("flags", "open" | "openat") => open_flags(word),
        (
            "flags",
            "newfstatat" | "unlinkat" | "linkat" | "fchownat" | "statx" | "execveat" | "faccessat2",
        ) => flags(word, AT_FLAGS),
        ("flags", "pipe2" | "dup3") => flags(word, OPEN_FLAGS),
        ("flags", "mmap") => flags(word, MAP_FLAGS),
        ("flags", "clone") => {
            let signal = word & 0xff;
            let of_flags = flags(word & !0xff, CLONE_FLAGS);
            match signal {
                0 => of_flags,
                _ => format!("{of_flags}|{signal}"),
            }
        }
        ("protection", _) => match word {
            0 => "PROT_NONE".into(),
            _ => flags(word, PROTECTIONS),
        },
        ("options", "wait4" | "waitid") => flags(word, WAIT_OPTIONS),
        ("mode", "open" | "openat" | "mkdir" | "mkdirat" | "chmod" | "fchmod" | "fchmodat" | "creat")
        | ("mask", "umask") => {
            format!("{word:#o}")
        }
        ("address", name) if takes_data(name) => data(thread, word, words[2]).await,
        _ if word == 0 && is_address(name) => "NULL".into(),
        _ => number(word),
    }
}

/// Returns whether a parameter is an address.
fn is_address(name: &str) -> bool {
    matches!(
        name,
        "address"
            | "buffer"
            | "status"
            | "resources"
            | "time"
            | "timeout"
            | "old"
            | "new"
            | "info"
            | "set"
            | "zone"
    )
}

/// A call that has begun.
pub(super) struct TracedCall {
    text: String,
    /// The data that the call returns, and the position of its address in the text.
    data: Option<(u64, usize)>,
}

impl TracedCall {
    /// Describes a call before it is served: it may change its arguments.
    pub async fn begin(
        thread: &Thread,
        call: Option<&'static Call>,
        number_of_call: u64,
        words: &[u64; 6],
    ) -> Self {
        let tid = thread.state.tid();
        let Some(call) = call else {
            return Self { text: format!("[pid {tid}] syscall_{number_of_call:#x}("), data: None };
        };
        let mut text = format!("[pid {tid}] {}(", call.name);
        let mut data = None;
        for index in 0..call.parameters.len() {
            if index > 0 {
                text += ", ";
            }
            if returns_data(call.name) && call.parameters[index] == "address" {
                data = Some((words[index], text.len()));
            }
            text += &parameter(thread, call, index, words).await;
        }
        Self { text, data }
    }

    /// Returns the text of a call that does not return.
    pub fn without_result(&self) -> String {
        format!("{}) = ?", self.text)
    }

    /// Returns the text with the result.
    pub async fn end(mut self, thread: &Thread, result: CallResult) -> String {
        if let (Some((address, position)), Ok(len)) = (self.data, result) {
            let shown = data(thread, address, len).await;
            let end = position + number(address).len();
            self.text.replace_range(position..end.min(self.text.len()), &shown);
        }
        let shown = match result {
            Ok(value) => number(value),
            Err(errno) if errno >= Errno::ERESTARTSYS => "? (interrupted by a signal)".into(),
            Err(errno) => format!("-1 {errno} ({})", message(errno)),
        };
        format!("{}) = {shown}", self.text)
    }
}

/// Returns the text of an error, as the C library's `strerror`.
fn message(errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM => "Operation not permitted",
        Errno::ENOENT => "No such file or directory",
        Errno::ESRCH => "No such process",
        Errno::EINTR => "Interrupted system call",
        Errno::EIO => "Input/output error",
        Errno::ENXIO => "No such device or address",
        Errno::E2BIG => "Argument list too long",
        Errno::ENOEXEC => "Exec format error",
        Errno::EBADF => "Bad file descriptor",
        Errno::ECHILD => "No child processes",
        Errno::EAGAIN => "Resource temporarily unavailable",
        Errno::ENOMEM => "Cannot allocate memory",
        Errno::EACCES => "Permission denied",
        Errno::EFAULT => "Bad address",
        Errno::EBUSY => "Device or resource busy",
        Errno::EEXIST => "File exists",
        Errno::EXDEV => "Invalid cross-device link",
        Errno::ENODEV => "No such device",
        Errno::ENOTDIR => "Not a directory",
        Errno::EISDIR => "Is a directory",
        Errno::EINVAL => "Invalid argument",
        Errno::EMFILE => "Too many open files",
        Errno::ENOTTY => "Inappropriate ioctl for device",
        Errno::ETXTBSY => "Text file busy",
        Errno::EFBIG => "File too large",
        Errno::ENOSPC => "No space left on device",
        Errno::ESPIPE => "Illegal seek",
        Errno::EROFS => "Read-only file system",
        Errno::EMLINK => "Too many links",
        Errno::EPIPE => "Broken pipe",
        Errno::ERANGE => "Numerical result out of range",
        Errno::ENAMETOOLONG => "File name too long",
        Errno::ENOSYS => "Function not implemented",
        Errno::ENOTEMPTY => "Directory not empty",
        Errno::ELOOP => "Too many levels of symbolic links",
        Errno::ENODATA => "No data available",
        Errno::EOVERFLOW => "Value too large for defined data type",
        Errno::ENOTSOCK => "Socket operation on non-socket",
        Errno::EOPNOTSUPP => "Operation not supported",
        Errno::EAFNOSUPPORT => "Address family not supported by protocol",
        Errno::EADDRINUSE => "Address already in use",
        Errno::ECONNREFUSED => "Connection refused",
        Errno::ECONNRESET => "Connection reset by peer",
        Errno::ENOTCONN => "Transport endpoint is not connected",
        Errno::ETIMEDOUT => "Connection timed out",
        Errno::EINPROGRESS => "Operation now in progress",
        _ => "see errno(3)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_shown_by_their_names_and_the_rest_as_a_number() {
        assert_eq!(
            open_flags((linux::O_WRONLY | linux::O_CREAT | linux::O_CLOEXEC).into()),
            "O_WRONLY|O_CREAT|O_CLOEXEC"
        );
        assert_eq!((open_flags(0).as_str(), flags(0, MAP_FLAGS).as_str()), ("O_RDONLY", "0"));
        assert_eq!(flags(0x22, MAP_FLAGS), "MAP_PRIVATE|MAP_ANONYMOUS");
        assert_eq!(flags(1 << 40 | 1, PROTECTIONS), "PROT_READ|0x10000000000");
    }

    #[test]
    fn bytes_are_shown_as_a_string_of_c() {
        assert_eq!(quoted(b"a\"b\\\n\x01\xff"), r#""a\"b\\\n\1\377""#);
        assert_eq!(
            (number(3), number(-1_i64 as u64), number(0xffff_ffff)),
            ("3".into(), "-1".into(), "-1".into())
        );
        assert_eq!(number(0x7f00_0000_0000), "0x7f0000000000");
    }
}
