//! Standard input, output and the terminal of this process, connected to a program of a cell.

use super::interrupt::Interrupts;
use super::{Context, Failure};
use crate::cellctl::sessions::{self, Session, send};
use crate::machine::LockedMachine;
use isola_abi::session::{CellMessage, HostMessage, MAX_PIECE, SessionRequest, TerminalSize};
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode, size};
use signal_hook::consts::SIGWINCH;
use signal_hook::iterator::Signals;
use std::io::{self, IsTerminal, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How long a wait for output lasts before a look at the signals.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long after a refusal a cell that starts is asked again.
const START_INTERVAL: Duration = Duration::from_millis(50);

/// Opens a session with a running cell. A cell that has just started gets some seconds to serve it.
pub(super) fn open_session(
    context: &Context,
    cell: &str,
    request: &SessionRequest,
) -> Result<Session, Failure> {
    loop {
        let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
        let mut client = locked.client()?;
        match sessions::open(&context.root, &locked, &mut client, cell, request.clone()) {
            Ok(session) => return Ok(session),
            Err(error) if sessions::may_be_starting(&error, &locked, &mut client, cell) => {}
            Err(error) => return Err(error.into()),
        }
        drop((client, locked));
        thread::sleep(START_INTERVAL);
    }
}

/// What of this process a program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProgramStreams {
    /// Standard input.
    pub input: bool,
    /// The terminal.
    pub terminal: bool,
}

/// How the session of a program ended.
#[derive(Debug)]
pub(super) enum AttachOutcome {
    /// The program ended with this exit code.
    Ended(u8),
    /// The cell could not run the program.
    Failed(String, u8),
    /// A signal requests the end.
    Interrupted,
    /// The connection was lost.
    Lost(io::Error),
}

impl ProgramStreams {
    /// Returns what is wrong with the request, if anything.
    pub(super) fn mistake(self) -> Option<&'static str> {
        (self.terminal && !io::stdin().is_terminal())
            .then_some("-t needs a terminal as standard input: leave it out in scripts and pipes")
    }

    /// Returns whether there is anything.
    pub(super) fn is_any(self) -> bool {
        self.input || self.terminal
    }

    /// Returns the arguments with which an image learns of it.
    pub(super) fn image_arguments(self) -> impl Iterator<Item = String> {
        let option = if self.terminal { "-t" } else { "-i" };
        self.is_any().then(|| option.to_owned()).into_iter()
    }

    /// Returns the size of this terminal.
    pub(super) fn size(self) -> TerminalSize {
        match size() {
            Ok((columns, rows)) if self.terminal => TerminalSize { rows, columns },
            _ => TerminalSize::default(),
        }
    }
}

/// A terminal in raw mode, until it is dropped.
struct RawMode;

impl RawMode {
    fn enter() -> io::Result<Self> {
        enable_raw_mode()?;
        // A panic ends the process without drops.
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let _ = disable_raw_mode();
            former(info);
        }));
        Ok(Self)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // Nothing can be done about an error.
        let _ = disable_raw_mode();
    }
}

/// Passes input and output until the program has ended, or a signal comes.
pub(super) fn relay(
    mut session: Session,
    streams: ProgramStreams,
    interrupts: &Interrupts,
) -> io::Result<AttachOutcome> {
    let _raw = streams.terminal.then(RawMode::enter).transpose()?;
    let sender = Arc::new(Mutex::new(session.sender()?));
    if streams.terminal {
        watch_size(sender.clone(), streams)?;
    }
    // The threads end with this process.
    thread::spawn(move || {
        if streams.input {
            pass_input(&sender);
        }
        if !streams.terminal {
            pass(&sender, &HostMessage::InputEnd);
        }
    });
    session.set_wait(INTERVAL)?;
    loop {
        match session.receive() {
            Ok(Some(CellMessage::Output(bytes))) => {
                let mut out = io::stdout().lock();
                out.write_all(&bytes).and_then(|()| out.flush())?;
            }
            Ok(Some(CellMessage::ErrorOutput(bytes))) => io::stderr().lock().write_all(&bytes)?,
            Ok(Some(CellMessage::Ended(code))) => return Ok(AttachOutcome::Ended(code)),
            Ok(Some(CellMessage::Failed(text, code))) => return Ok(AttachOutcome::Failed(text, code)),
            Ok(Some(CellMessage::Entry(_) | CellMessage::Contents(_))) | Ok(None) => {}
            Err(error) => return Ok(AttachOutcome::Lost(error)),
        }
        if interrupts.check().is_break() {
            return Ok(AttachOutcome::Interrupted);
        }
    }
}

/// Sends a message; the receiver notices a lost connection.
fn pass(sender: &Mutex<TcpStream>, message: &HostMessage) -> bool {
    let mut stream = sender.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    send(&mut stream, message).is_ok()
}

fn pass_input(sender: &Mutex<TcpStream>) {
    let mut bytes = vec![0; MAX_PIECE];
    loop {
        match io::stdin().read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => {
                if !pass(sender, &HostMessage::Input(bytes[..count].to_vec())) {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Sends the terminal's size at each change.
fn watch_size(sender: Arc<Mutex<TcpStream>>, streams: ProgramStreams) -> io::Result<()> {
    let mut signals = Signals::new([SIGWINCH])?;
    thread::spawn(move || {
        for _ in signals.forever() {
            if !pass(&sender, &HostMessage::Resize(streams.size())) {
                return;
            }
        }
    });
    Ok(())
}
