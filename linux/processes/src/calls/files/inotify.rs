//! `inotify`.

use super::descriptors::install;
use crate::Errno;
use crate::calls::CallResult;
use crate::thread::Thread;
use alloc::sync::Arc;
use isola_linux_files::{Inotify, OpenFile};

pub fn inotify_init1(thread: &mut Thread, flags: u32) -> CallResult {
    let file = Inotify::open(flags, thread.credentials.user.real)?;
    install(thread, file, flags)
}

pub fn inotify_init(thread: &mut Thread) -> CallResult {
    inotify_init1(thread, 0)
}

/// Returns the instance of a file.
fn instance(file: &Arc<OpenFile>) -> Result<&Inotify, Errno> {
    file.object_as::<Inotify>().ok_or(Errno::EINVAL)
}

pub async fn inotify_add_watch(thread: &mut Thread, descriptor: i32, path: u64, mask: u32) -> CallResult {
    let file = thread.files.get(descriptor)?;
    let path = thread.memory.path(path).await?;
    Ok(instance(&file)?.add_watch(&thread.caller(), &path, mask).await? as u64)
}

pub fn inotify_rm_watch(thread: &mut Thread, descriptor: i32, watch: i32) -> CallResult {
    let file = thread.files.get(descriptor)?;
    instance(&file)?.remove_watch(watch)?;
    Ok(0)
}
