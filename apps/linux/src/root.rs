//! bring-up
use isola::prelude::*;
use alloc::sync::Arc;
use isola_linux_files::*;
use isola_linux_processes::System;
pub struct Root { pub namespace: Arc<Namespace> }
pub async fn mount(_console: &Arc<Console>) -> Result<Root, String> {
    let files = TmpFs::new(TmpFsOptions::of_len(64 << 20));
    let mounted = MountedFileSystem::new(files);
    let namespace = Namespace::new(mounted, b"tmpfs", MountFlags::default());
    let view = View::new(namespace.clone());
    let (credentials, descriptors) = (Credentials::root(), DescriptorTable::new());
    let caller = Caller { view: &view, credentials: &credentials, descriptors: &descriptors, ids: CallerIds { process: 1, thread: 1 } };
    for (name, bytes) in [("/hello", &include_bytes!("/tmp/bring/hello")[..]), ("/busybox", &include_bytes!("/tmp/bring/busybox")[..])] {
        let file = caller.open_at(-100, name.as_bytes(), 0o101, 0o755).await.map_err(|e| format!("{e}"))?;
        file.write(&mut isola_linux_memory::UserBuffer::of_bytes(bytes)).await.map_err(|e| format!("{e}"))?;
    }
    Ok(Root { namespace })
}
impl Root { pub fn mount_generated(&self, _system: &Arc<System>) {} }
