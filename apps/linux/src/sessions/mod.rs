//! Sessions of the host tool with programs of the cell (`isola run -i`, `isola exec`, `isola cp`), see
//! [`isola_abi::session`].
//!
//! The cell listens from the first query on, and serves connections that show a key of a query within
//! [`OPEN_LIMIT`]. Everything else that connects costs the cell one of [`MOST_UNOPENED`] places until then.
//!
//! | module | contents |
//! |---|---|
//! | this | keys, the port, the first program's session |
//! | `streams` | standard input and output of a program |
//! | `copies` | copies of files |

mod copies;
mod messages;
mod streams;

use crate::cell::start_errors;
use isola::events::{Instant, now, timeout};
use isola::net::{PortListener, TcpStream, listen};
use isola::prelude::*;
use isola::sync::{Mutex, Once};
use isola::{ProcessUsage, SessionKey, serve_processes, serve_sessions};
use isola_abi::session::{CellMessage, CommandSpec, HostMessage, SessionRequest, TerminalSize};
use isola_linux::Options;
use isola_linux_files::OpenFile;
use isola_linux_processes::wait_queue::WaitQueue;
use isola_linux_processes::{System, list_processes, start_command};
use messages::{Incoming, Outgoing};
pub use streams::KernelEnds;

extern crate alloc;

use alloc::sync::Arc;
use core::time::Duration;

/// The ports of which the first free one is used.
const PORTS: core::ops::Range<u16> = 61_000..61_100;
/// How long a connection may take to show its key, and how long a key is valid.
const OPEN_LIMIT: Duration = Duration::from_secs(20);
/// The most keys that were not used yet, and the most connections that have not shown one.
const MOST_UNOPENED: usize = 16;
/// How long the first program waits for its session.
const ATTACH_LIMIT: Duration = Duration::from_secs(60);
/// How long a session may take to receive the last bytes.
const END_LIMIT: Duration = Duration::from_secs(10);

static SESSIONS: Once<Arc<Sessions>> = Once::new();

/// The sessions of the cell.
pub struct Sessions {
    system: Arc<System>,
    options: Options,
    state: Mutex<SessionState>,
    changes: WaitQueue,
}

#[derive(Default)]
struct SessionState {
    keys: Vec<(SessionKey, Instant)>,
    listener: Option<(u16, PortListener)>,
    unopened: usize,
    /// The kernel's ends of the first program's input and output, until its session takes them.
    ends: Option<KernelEnds>,
    is_attached: bool,
    /// The exit code of the first program.
    code: Option<u8>,
    /// The first program's session has sent everything.
    is_over: bool,
}

impl Sessions {
    /// Serves sessions from now on. `ends` are for the session of the first program, if it is to have one.
    pub fn begin(system: &Arc<System>, options: &Options, ends: Option<KernelEnds>) -> Arc<Self> {
        let state = SessionState { ends, ..SessionState::default() };
        let sessions = Arc::new(Self {
            system: system.clone(),
            options: options.clone(),
            state: Mutex::new(state),
            changes: WaitQueue::default(),
        });
        let begun = sessions.clone();
        SESSIONS.call_once(|| begun);
        serve_processes(|most| Box::pin(processes(most)));
        serve_sessions(|key| {
            SESSIONS.get().map_or_else(|| Err("it starts".into()), |sessions| sessions.open(key))
        });
        sessions
    }

    /// Waits for the session of the first program. Returns whether it has come in time.
    pub async fn attached(&self) -> bool {
        let attached = self.changes.wait_until(|| self.state.lock().is_attached.then_some(()));
        timeout(ATTACH_LIMIT, attached).await.is_ok()
    }

    /// Ends the session of the first program, which has ended, and waits until everything was sent.
    pub async fn program_ended(&self, code: u8) {
        self.state.lock().code = Some(code);
        self.changes.wake_all();
        let over = self.changes.wait_until(|| self.state.lock().is_over.then_some(()));
        // Without an answer of the host tool the cell ends nevertheless.
        let _ = timeout(END_LIMIT, over).await;
    }

    /// Remembers a key, and returns the port for its session.
    fn open(self: &Arc<Self>, key: SessionKey) -> Result<u16, String> {
        let mut state = self.state.lock();
        let now = now();
        state.keys.retain(|(_, until)| *until > now);
        if state.keys.len() >= MOST_UNOPENED {
            return Err("too many commands wait for their sessions: try again".into());
        }
        let port = match &state.listener {
            Some((port, _)) => *port,
            None => {
                let found = PORTS.into_iter().find_map(|port| {
                    let sessions = self.clone();
                    let listener = listen(port, MOST_UNOPENED, move |stream| sessions.clone().serve(stream));
                    Some((port, listener.ok()?))
                });
                let found = found.ok_or("its TCP ports for sessions are taken")?;
                state.listener.insert(found).0
            }
        };
        state.keys.push((key, now + OPEN_LIMIT));
        Ok(port)
    }

    /// Serves a connection.
    async fn serve(self: Arc<Self>, mut stream: TcpStream) {
        {
            let mut state = self.state.lock();
            if state.unopened >= MOST_UNOPENED {
                return;
            }
            state.unopened += 1;
        }
        let (read, write) = stream.split();
        let (mut incoming, mut outgoing) = (Incoming::new(read), Outgoing::new(write));
        let opened = timeout(OPEN_LIMIT, async {
            outgoing.greet().await?;
            match incoming.next().await? {
                HostMessage::Open(key, request) => self.take_key(&key).then_some(request),
                _ => None,
            }
        });
        let opened = opened.await.ok().flatten();
        self.state.lock().unopened -= 1;
        let Some(request) = opened else { return };
        let attaches = matches!(request, SessionRequest::Attach { .. });
        let last = self.session(request, &mut incoming, &mut outgoing).await;
        if let Some(last) = last
            && outgoing.send(&last).await.is_some()
        {
            outgoing.end();
            // The peer closes when it has received all.
            let _ = timeout(END_LIMIT, async { while incoming.next().await.is_some() {} }).await;
        }
        if attaches {
            self.state.lock().is_over = true;
            self.changes.wake_all();
        }
    }

    /// Returns whether a key is valid, and makes it invalid.
    fn take_key(&self, key: &SessionKey) -> bool {
        let mut state = self.state.lock();
        let now = now();
        let found = state.keys.iter().position(|(known, until)| known.matches(key) && *until > now);
        found.map(|at| state.keys.swap_remove(at)).is_some()
    }

    /// Serves a session. Returns its last message, or nothing if the connection was lost.
    async fn session(
        self: &Arc<Self>,
        request: SessionRequest,
        incoming: &mut Incoming<'_>,
        outgoing: &mut Outgoing<'_>,
    ) -> Option<CellMessage> {
        match request {
            SessionRequest::Attach { size } => {
                let ends = self.state.lock().ends.take();
                let Some(ends) = ends else {
                    return Some(CellMessage::Failed("another command has its standard input".into(), 1));
                };
                ends.set_size(size);
                self.state.lock().is_attached = true;
                self.changes.wake_all();
                let ended = self.changes.wait_until(|| self.state.lock().code);
                ends.serve(incoming, outgoing, ended).await.map(CellMessage::Ended)
            }
            SessionRequest::Execute(command) => self.execute(&command, incoming, outgoing).await,
            SessionRequest::Fetch { path } => {
                Some(copies::fetch(&self.system, &path, outgoing).await?.into_message())
            }
            SessionRequest::Store { path, name } => {
                Some(copies::store(&self.system, &path, &name, incoming).await?.into_message())
            }
        }
    }

    /// Executes a command beside the first program.
    async fn execute(
        &self,
        command: &CommandSpec,
        incoming: &mut Incoming<'_>,
        outgoing: &mut Outgoing<'_>,
    ) -> Option<CellMessage> {
        let identity = match &command.user {
            Some(user) => match crate::root::find_user(&self.system.namespace, user).await {
                Ok(identity) => identity,
                Err(error) => return Some(CellMessage::Failed(format!("-u {user}: {error}"), 125)),
            },
            None => self.options.identity.clone(),
        };
        let options = self.options.of_command(command, identity);
        let created = KernelEnds::create(&self.system, options.has_terminal, &options.identity);
        let (ends, files) = match created {
            Ok(created) => created,
            Err(error) => {
                return Some(CellMessage::Failed(format!("no terminal can be created: {error}"), 125));
            }
        };
        ends.set_size(command.terminal.unwrap_or_default());
        let (mut started, mut last) = (None, None);
        for program in crate::programs(&options, &files) {
            match start_command(&self.system, program).await {
                Ok(command) => {
                    started = Some(command);
                    break;
                }
                Err(error) => last = start_errors(last, error),
            }
        }
        // The command alone has its ends: their reader sees when it closes them.
        drop(files);
        if let Some(started) = started {
            let code = ends.serve(incoming, outgoing, async { started.ended().await.shell_code() }).await;
            if code.is_none() {
                // Without a terminal only this signal ends the command.
                started.hang_up();
                isola::events::spawn_task(async move {
                    started.ended().await;
                })
                .detach();
            }
            return code.map(CellMessage::Ended);
        }
        let program = command.arguments.first().map_or("", String::as_str);
        let (text, code) = crate::not_executed(program, last);
        Some(CellMessage::Failed(text, code))
    }
}

/// Returns the number of processes, and those that have used most time, with the names of their users.
async fn processes(most: usize) -> (usize, Vec<ProcessUsage>) {
    let Some(sessions) = SESSIONS.get() else { return (0, Vec::new()) };
    let (count, mut shown) = list_processes(&sessions.system, most);
    let names = crate::root::user_names(&sessions.system.namespace).await;
    for process in &mut shown {
        let found = names.iter().find(|(id, _)| *id == process.user);
        process.user_name = found.map(|(_, name)| name.clone());
    }
    (count, shown)
}

/// The files with the descriptors 0, 1 and 2 of a program.
pub type StandardFiles = [Arc<OpenFile>; 3];

/// Returns `struct winsize` of a size.
fn window(size: TerminalSize) -> [u16; 4] {
    [size.rows, size.columns, 0, 0]
}
