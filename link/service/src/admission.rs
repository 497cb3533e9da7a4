//! Admission of clients to a device that this cell serves: the first messages, and the rule for concurrent clients.
//!
//! Each device has a listener, and an activity by its name, to which its clients' work is charged.

use alloc::rc::Rc;
use core::cell::Cell;
use core::future::Future;
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_abi::service::{Hello, Reply, ServiceRefusal, decode, encode};
use isola_abi::volume::VolumeAccess;
use isola_activities::INFRASTRUCTURE;
use isola_channels::{Channel, ChannelError, Listener, listen};
use isola_events::{register_activity, spawn_task_for, timeout, yield_now};

/// How long a client may take for each step before its first request.
pub const STEP_LIMIT: Duration = Duration::from_secs(5);

/// Whether clients can read a device while another one writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One client that writes, or any number that read.
    WriterOrReaders,
    /// One client that writes, and any number that read.
    WriterAndReaders,
}

/// The users of a device.
#[derive(Debug)]
pub struct Users {
    /// The access that clients can have.
    access: VolumeAccess,
    sharing: Sharing,
    has_writer: Cell<bool>,
    readers: Cell<usize>,
}

/// The right of a client to use a device, until it is dropped.
#[derive(Debug)]
pub struct Lease {
    users: Rc<Users>,
    access: VolumeAccess,
}

impl Users {
    /// Returns the users of a device without any.
    pub fn new(access: VolumeAccess, sharing: Sharing) -> Rc<Self> {
        Rc::new(Self { access, sharing, has_writer: Cell::new(false), readers: Cell::new(0) })
    }

    /// Gives a client that sent this message the right to use the device.
    ///
    /// # Errors
    /// The answer to the client.
    pub fn admit(self: &Rc<Self>, hello: Option<Hello>) -> Result<Lease, ServiceRefusal> {
        let Hello { version, access } = hello.ok_or(ServiceRefusal::Malformed)?;
        if version != isola_abi::VERSION {
            return Err(ServiceRefusal::Version(isola_abi::VERSION));
        }
        let (has_writer, readers) = (self.has_writer.get(), self.readers.get());
        let excludes = self.sharing == Sharing::WriterOrReaders;
        match access {
            VolumeAccess::ReadWrite if self.access == VolumeAccess::ReadOnly => {
                return Err(ServiceRefusal::ReadOnly);
            }
            VolumeAccess::ReadWrite if has_writer || excludes && readers > 0 => {
                return Err(ServiceRefusal::InUse);
            }
            VolumeAccess::ReadOnly if excludes && has_writer => return Err(ServiceRefusal::InUse),
            VolumeAccess::ReadWrite => self.has_writer.set(true),
            VolumeAccess::ReadOnly => self.readers.set(readers + 1),
        }
        Ok(Lease { users: self.clone(), access })
    }
}

impl Lease {
    /// Returns the access of the client.
    pub fn access(&self) -> VolumeAccess {
        self.access
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match self.access {
            VolumeAccess::ReadWrite => self.users.has_writer.set(false),
            VolumeAccess::ReadOnly => self.users.readers.set(self.users.readers.get().saturating_sub(1)),
        }
    }
}

/// Serves a device by its name to the cells that this one accepts, on the first core, until the cell ends: `serve` runs for
/// each admitted client, for the device's activity. The client's place is free when it completes.
///
/// # Errors
/// A [`ChannelError`], if the name cannot be that of a service, or is taken.
pub fn serve_clients<F: Future<Output = ()> + 'static>(
    name: &str,
    users: Rc<Users>,
    serve: impl Fn(ActivityId, Channel, VolumeAccess) -> F + 'static,
) -> Result<(), ChannelError> {
    let listener = listen(name)?;
    // Without memory for an activity, the work is for the cell's infrastructure.
    let activity = register_activity(name).unwrap_or(INFRASTRUCTURE);
    let serve = Rc::new(serve);
    let begin = move |channel: Channel| {
        let (users, serve) = (users.clone(), serve.clone());
        let serve_client = async move {
            if let Some(lease) = admit(&users, &channel).await {
                serve(activity, channel, lease.access()).await;
            }
        };
        spawn_task_for(activity, serve_client).detach();
    };
    spawn_task_for(activity, accept_all(listener, begin)).detach();
    Ok(())
}

/// Calls `begin` for each channel that a client opens, until the cell ends.
pub(crate) async fn accept_all(listener: Listener, begin: impl Fn(Channel)) {
    loop {
        match listener.accept().await {
            Ok(channel) => begin(channel),
            // The opener has ended, or there is no memory: other events may free some.
            Err(_) => yield_now().await,
        }
    }
}

/// Receives the first message of a client; `None` if the client is refused, or says nothing and its link is to end.
async fn admit(users: &Rc<Users>, channel: &Channel) -> Option<Lease> {
    let hello = timeout(STEP_LIMIT, channel.read()).await.ok()?.ok()?;
    match users.admit(decode(&hello)) {
        Ok(lease) => Some(lease),
        Err(refusal) => {
            refuse(channel, refusal).await;
            None
        }
    }
}

/// Answers a client that is refused, and waits until it has closed the channel: the answer would be lost otherwise.
pub(crate) async fn refuse(channel: &Channel, refusal: ServiceRefusal) {
    let _ = timeout(STEP_LIMIT, channel.write(&encode(&Reply::Refused(refusal)))).await;
    let _ = timeout(STEP_LIMIT, channel.closed()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use VolumeAccess::{ReadOnly, ReadWrite};

    fn hello(access: VolumeAccess) -> Option<Hello> {
        Some(Hello { version: isola_abi::VERSION, access })
    }

    fn admit(users: &Rc<Users>, access: VolumeAccess) -> Result<Lease, ServiceRefusal> {
        users.admit(hello(access))
    }

    #[test]
    fn a_volume_has_one_writer_or_readers() {
        let users = Users::new(ReadWrite, Sharing::WriterOrReaders);
        let writer = admit(&users, ReadWrite).unwrap();
        assert_eq!(admit(&users, ReadWrite).unwrap_err(), ServiceRefusal::InUse);
        assert_eq!(admit(&users, ReadOnly).unwrap_err(), ServiceRefusal::InUse);
        drop(writer);
        let readers = [admit(&users, ReadOnly).unwrap(), admit(&users, ReadOnly).unwrap()];
        assert_eq!(admit(&users, ReadWrite).unwrap_err(), ServiceRefusal::InUse);
        let [first, second] = readers;
        drop(first);
        assert_eq!(admit(&users, ReadWrite).unwrap_err(), ServiceRefusal::InUse, "one still reads");
        drop(second);
        assert_eq!(admit(&users, ReadWrite).unwrap().access(), ReadWrite);
    }

    #[test]
    fn a_folder_has_one_writer_and_readers() {
        let users = Users::new(ReadWrite, Sharing::WriterAndReaders);
        let readers = [admit(&users, ReadOnly), admit(&users, ReadOnly)];
        let writer = admit(&users, ReadWrite).unwrap();
        assert_eq!(admit(&users, ReadWrite).unwrap_err(), ServiceRefusal::InUse);
        assert!(admit(&users, ReadOnly).is_ok());
        drop(writer);
        assert!(admit(&users, ReadWrite).is_ok());
        drop(readers);
    }

    #[test]
    fn others_than_clients_of_this_version_are_refused() {
        let users = Users::new(ReadOnly, Sharing::WriterAndReaders);
        assert_eq!(admit(&users, ReadWrite).unwrap_err(), ServiceRefusal::ReadOnly);
        assert_eq!(users.admit(None).unwrap_err(), ServiceRefusal::Malformed);
        let other = Hello { version: isola_abi::VERSION + 1, access: ReadOnly };
        let refusal = ServiceRefusal::Version(isola_abi::VERSION);
        assert_eq!(users.admit(Some(other)).unwrap_err(), refusal);
        assert!(admit(&users, ReadOnly).is_ok());
    }
}
