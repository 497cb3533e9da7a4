//! Options of sockets, and the list of network interfaces.

use super::{OpenSocket, socket_caller};
use crate::Errno;
use crate::calls::CallResult;
use crate::thread::Thread;
use alloc::vec::Vec;
use isola_linux_sockets::interface_list;

/// The most bytes of the value of an option.
const MOST_VALUE_LEN: usize = 1 << 16;

pub async fn setsockopt(
    thread: &mut Thread,
    descriptor: i32,
    level: u32,
    name: u32,
    value: u64,
    len: i32,
) -> CallResult {
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    let open = OpenSocket::of(thread, descriptor)?;
    if len > MOST_VALUE_LEN {
        return Err(Errno::EINVAL);
    }
    let mut bytes = alloc::vec![0; len];
    thread.memory.read_to(value, &mut bytes).await?;
    let files = thread.caller();
    let result = open.file()?.set_option(level, name, &bytes, &socket_caller(thread, &files));
    count_missing(thread, level, name, &result);
    result.map(|()| 0)
}

pub async fn getsockopt(
    thread: &mut Thread,
    descriptor: i32,
    level: u32,
    name: u32,
    value: u64,
    len_address: u64,
) -> CallResult {
    let open = OpenSocket::of(thread, descriptor)?;
    let len = i32::from_le_bytes(thread.memory.read_bytes::<4>(len_address).await?);
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    let result = open.file()?.option(level, name);
    count_missing(thread, level, name, &result);
    let bytes = result?;
    let len = len.min(bytes.len());
    thread.memory.write_bytes(value, &bytes[..len]).await?;
    thread.memory.write_bytes(len_address, &(len as u32).to_le_bytes()).await?;
    Ok(0)
}

fn count_missing<T>(thread: &Thread, level: u32, name: u32, result: &Result<T, Errno>) {
    if matches!(result, Err(Errno::ENOPROTOOPT)) {
        thread.system.missing.count(&alloc::format!("socket option {name} of level {level}"));
    }
}

/// `SIOCGIFCONF`: writes the list of interfaces with IPv4 addresses, or its length.
pub async fn write_interfaces(thread: &Thread, argument: u64) -> CallResult {
    /// Length of `struct ifconf`: the length of the list, and its address.
    const LEN: usize = 16;
    let bytes = thread.memory.read_bytes::<LEN>(argument).await?;
    let len = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let list = u64::from_le_bytes(core::array::from_fn(|index| bytes[8 + index]));
    let entries = interface_list(&*thread.system.sockets.interfaces());
    let entry_len = entries.first().map_or(1, |entry| entry.len());
    let count = match list {
        0 => entries.len(),
        _ => entries.len().min(usize::try_from(len).map_err(|_| Errno::EINVAL)? / entry_len),
    };
    if list != 0 {
        let bytes: Vec<u8> = entries[..count].iter().flatten().copied().collect();
        thread.memory.write_bytes(list, &bytes).await?;
    }
    let len = (count * entry_len) as u32;
    thread.memory.write_bytes(argument, &len.to_le_bytes()).await?;
    Ok(0)
}
