//! Control messages (cmsg(3)): descriptors, credentials, and those of families.

use super::peer_credentials;
use crate::Errno;
use crate::calls::files::descriptor_limit;
use crate::thread::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::net::{AF_NETLINK, AF_UNIX, SOL_SOCKET};
use isola_linux_abi::numbers::{CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN};
use isola_linux_files::{OnExec, OpenFile};
use isola_linux_sockets::{Ancillary, ControlMessage, MOST_RIGHTS, MessageFlags, PeerCredentials};

/// The length of `struct cmsghdr`: length, level, type.
const HEADER_LEN: usize = 16;
/// Control messages begin at multiples of this.
const ALIGNMENT: usize = 8;
/// The most bytes of control messages that a call sends (`net.core.optmem_max`).
const MOST_CONTROL_LEN: u64 = 128 << 10;
/// Types of control messages of `SOL_SOCKET`.
const SCM_RIGHTS: u32 = 1;
const SCM_CREDENTIALS: u32 = 2;

/// Reads the control messages of a call that sends.
///
/// # Errors
/// [`Errno::EINVAL`], [`Errno::EBADF`], [`Errno::EPERM`], [`Errno::ENOBUFS`], [`Errno::EFAULT`].
pub async fn read(thread: &Thread, domain: u32, address: u64, len: u64) -> Result<Ancillary, Errno> {
    if len > MOST_CONTROL_LEN {
        return Err(Errno::ENOBUFS);
    }
    let mut bytes = alloc::vec![0; len as usize];
    thread.memory.read_to(address, &mut bytes).await?;
    let is_local = matches!(domain, AF_UNIX | AF_NETLINK);
    let mut ancillary = Ancillary::default();
    let mut rest = &bytes[..];
    while let Some((header, _)) = rest.split_first_chunk::<HEADER_LEN>() {
        let len = u64::from_le_bytes(core::array::from_fn(|index| header[index]));
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| header[at + index]));
        let (level, kind) = (word(8), word(12));
        let len = usize::try_from(len).ok().filter(|len| (HEADER_LEN..=rest.len()).contains(len));
        let len = len.ok_or(Errno::EINVAL)?;
        let data = &rest[HEADER_LEN..len];
        match (level, kind) {
            (SOL_SOCKET, SCM_RIGHTS) if domain == AF_UNIX => {
                for descriptor in data.chunks_exact(4) {
                    if ancillary.rights.len() == MOST_RIGHTS {
                        return Err(Errno::EINVAL);
                    }
                    let descriptor = i32::from_le_bytes(core::array::from_fn(|index| descriptor[index]));
                    ancillary.rights.push(thread.files.get_any(descriptor)?);
                }
            }
            (SOL_SOCKET, SCM_CREDENTIALS) if is_local => {
                let bytes = data.try_into().map_err(|_| Errno::EINVAL)?;
                let credentials = PeerCredentials::parse(bytes);
                check_credentials(thread, credentials)?;
                ancillary.credentials = Some(credentials);
            }
            (SOL_SOCKET, _) if is_local => return Err(Errno::EINVAL),
            _ if is_local => {}
            _ => ancillary.others.push(ControlMessage { level, kind, data: data.to_vec() }),
        }
        rest = rest.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or(&[]);
    }
    Ok(ancillary)
}

/// Checks that a process may send these credentials.
fn check_credentials(thread: &Thread, credentials: PeerCredentials) -> Result<(), Errno> {
    let own = &thread.credentials;
    let is_one_of = |ids: crate::credentials::Ids, id| [ids.real, ids.effective, ids.saved].contains(&id);
    let may = credentials.process == thread.process.pid || own.has(CAP_SYS_ADMIN);
    let may = may && (is_one_of(own.user, credentials.user) || own.has(CAP_SETUID));
    let may = may && (is_one_of(own.group, credentials.group) || own.has(CAP_SETGID));
    if !may {
        return Err(Errno::EPERM);
    }
    let is_other = credentials.process != thread.process.pid;
    if is_other && thread.system.family.lock().process(credentials.process).is_none() {
        return Err(Errno::ESRCH);
    }
    Ok(())
}

/// Returns the credentials that accompany messages of the thread.
pub fn sender(thread: &Thread) -> PeerCredentials {
    let own = &thread.credentials;
    PeerCredentials { user: own.user.real, group: own.group.real, ..peer_credentials(thread) }
}

/// Control messages for a call that receives.
pub struct ReceivedControl {
    /// Their bytes.
    pub bytes: Vec<u8>,
    /// [`MessageFlags::CTRUNC`] if some did not fit.
    pub flags: MessageFlags,
    room: usize,
    /// The descriptors that were installed, for an error that follows.
    installed: Vec<i32>,
}

impl ReceivedControl {
    /// Encodes the data beside a message, in `room` bytes, and gives received files descriptors. Files for which there is no
    /// room are closed.
    pub fn encode(thread: &Thread, ancillary: Ancillary, room: u64, flags: MessageFlags) -> Self {
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let mut this = Self { bytes: Vec::new(), flags: MessageFlags::NONE, room, installed: Vec::new() };
        if let Some(credentials) = ancillary.credentials {
            this.put(SOL_SOCKET, SCM_CREDENTIALS, &credentials.encode());
        }
        if !ancillary.rights.is_empty() {
            this.put_rights(thread, ancillary.rights, flags);
        }
        for message in &ancillary.others {
            this.put(message.level, message.kind, &message.data);
        }
        this
    }

    /// Closes the descriptors that were installed.
    pub fn undo(&self, thread: &Thread) {
        for descriptor in &self.installed {
            // Another thread may have closed it.
            let _ = thread.files.close(*descriptor);
        }
    }

    fn left(&self) -> usize {
        self.room.saturating_sub(self.bytes.len())
    }

    /// Adds a control message, cut if there is no room for all of it.
    fn put(&mut self, level: u32, kind: u32, data: &[u8]) {
        let left = self.left();
        if left < HEADER_LEN {
            self.flags.add(MessageFlags::CTRUNC);
            return;
        }
        let len = (HEADER_LEN + data.len()).min(left);
        if len < HEADER_LEN + data.len() {
            self.flags.add(MessageFlags::CTRUNC);
        }
        self.bytes.extend((len as u64).to_le_bytes());
        self.bytes.extend(level.to_le_bytes());
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend(&data[..len - HEADER_LEN]);
        let end = self.bytes.len().next_multiple_of(ALIGNMENT).min(self.room);
        self.bytes.resize(end, 0);
    }

    fn put_rights(&mut self, thread: &Thread, rights: Vec<Arc<OpenFile>>, flags: MessageFlags) {
        let room = self.left().saturating_sub(HEADER_LEN) / 4;
        let on_exec = if flags.has(MessageFlags::CMSG_CLOEXEC) { OnExec::Close } else { OnExec::Keep };
        let count = rights.len();
        let mut data = Vec::new();
        for file in rights.into_iter().take(room) {
            let Ok(descriptor) = thread.files.install(file, on_exec, descriptor_limit(thread)) else { break };
            self.installed.push(descriptor);
            data.extend(descriptor.to_le_bytes());
        }
        if data.len() < count * 4 {
            self.flags.add(MessageFlags::CTRUNC);
        }
        if !data.is_empty() {
            self.put(SOL_SOCKET, SCM_RIGHTS, &data);
        }
    }
}
