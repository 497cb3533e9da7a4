//! Standard input and output of a program: pipes or a terminal, whose other ends the kernel has.

use super::messages::{Incoming, Outgoing};
use super::{StandardFiles, window};
use isola::future::{Either, select};
use isola::prelude::*;
use isola_abi::session::{CellMessage, HostMessage, MAX_PIECE, TerminalSize};
use isola_linux::User;
use isola_linux_files::{Errno, Events, OpenFile, Ownership, PollEntry, pipe, poll_files};
use isola_linux_memory::UserBuffer;
use isola_linux_processes::System;

extern crate alloc;

use alloc::sync::Arc;
use core::future::Future;
use core::pin::pin;

/// Flags of the kernel's ends: reads are attempts.
const O_RDWR: u32 = 2;
const O_NONBLOCK: u32 = 0o4000;

/// The kernel's ends of a program's standard input and output.
pub enum KernelEnds {
    /// Three pipes.
    Pipes {
        /// For its input.
        input: Arc<OpenFile>,
        /// Of its output.
        output: Arc<OpenFile>,
        /// Of its errors.
        errors: Arc<OpenFile>,
    },
    /// The master of a terminal.
    Terminal(Arc<OpenFile>),
}

impl KernelEnds {
    /// Creates pipes or a terminal, and the files of the program.
    pub fn create(
        system: &Arc<System>,
        has_terminal: bool,
        identity: &User,
    ) -> Result<(Self, StandardFiles), Errno> {
        if has_terminal {
            let owner = Ownership::of_terminal(identity.user, identity.group);
            let (master, slave) = system.terminals.create_open(owner, window(TerminalSize::default()))?;
            let slave = slave.into_open_file(O_RDWR);
            return Ok((
                Self::Terminal(master.into_open_file(O_RDWR | O_NONBLOCK)),
                [slave.clone(), slave.clone(), slave],
            ));
        }
        let (own_input, input) = pipe(0)?;
        let (output, own_output) = pipe(0)?;
        let (errors, own_errors) = pipe(0)?;
        output.set_flags(O_NONBLOCK);
        errors.set_flags(O_NONBLOCK);
        Ok((Self::Pipes { input, output, errors }, [own_input, own_output, own_errors]))
    }

    /// Sets the size of the terminal.
    pub fn set_size(&self, size: TerminalSize) {
        if let Self::Terminal(master) = self
            && let Some(file) = master.terminal()
        {
            file.terminal().set_size(window(size));
        }
    }

    /// Passes input and output until the program has ended. Returns its exit code, or nothing if the connection was lost:
    /// then the terminal hangs up, and pipes are closed.
    pub async fn serve(
        self,
        incoming: &mut Incoming<'_>,
        outgoing: &mut Outgoing<'_>,
        ended: impl Future<Output = u8>,
    ) -> Option<u8> {
        let (mut input, outputs, terminal) = match self {
            Self::Pipes { input, output, errors } => {
                (Some(input), alloc::vec![(output, false), (errors, true)], None)
            }
            Self::Terminal(master) => {
                (Some(master.clone()), alloc::vec![(master.clone(), false)], Some(master))
            }
        };
        let receive = pin!(receive(incoming, &mut input, terminal.as_ref()));
        let send = pin!(send(outgoing, outputs, ended));
        match select(receive, send).await {
            Either::Left(((), _)) => None,
            Either::Right((code, _)) => code,
        }
    }
}

/// Passes input on, until the connection ends.
async fn receive(
    incoming: &mut Incoming<'_>,
    input: &mut Option<Arc<OpenFile>>,
    terminal: Option<&Arc<OpenFile>>,
) {
    while let Some(message) = incoming.next().await {
        match message {
            HostMessage::Input(bytes) => {
                let Some(file) = input.as_ref() else { continue };
                let mut buffer = UserBuffer::of_bytes(&bytes);
                while !buffer.is_empty() {
                    match file.write(&mut buffer).await {
                        Ok(_) => {}
                        Err(Errno::EAGAIN) => file.wait(Events::OUT).await,
                        // The program reads no more: the rest of the input is dropped.
                        Err(_) => {
                            *input = None;
                            break;
                        }
                    }
                }
            }
            // A terminal has no end of its input but the character that its user types.
            HostMessage::InputEnd if terminal.is_none() => *input = None,
            HostMessage::Resize(size) => {
                if let Some(file) = terminal.and_then(|master| master.terminal()) {
                    file.terminal().set_size(window(size));
                }
            }
            _ => {}
        }
    }
}

/// Sends output until the program has ended and all that it has written was sent.
async fn send(
    outgoing: &mut Outgoing<'_>,
    mut outputs: Vec<(Arc<OpenFile>, bool)>,
    ended: impl Future<Output = u8>,
) -> Option<u8> {
    let mut ended = pin!(ended);
    let mut code = None;
    loop {
        let mut is_idle = true;
        let mut at = 0;
        while at < outputs.len() {
            let (file, is_error) = &outputs[at];
            match read_piece(file).await {
                Ok(bytes) if !bytes.is_empty() => {
                    is_idle = false;
                    let message =
                        if *is_error { CellMessage::ErrorOutput(bytes) } else { CellMessage::Output(bytes) };
                    outgoing.send(&message).await?;
                    at += 1;
                }
                Err(Errno::EAGAIN) => at += 1,
                // The end of a pipe, and of a terminal whose programs have closed it.
                Ok(_) | Err(_) => drop(outputs.remove(at)),
            }
        }
        if !is_idle {
            continue;
        }
        if let Some(code) = code {
            return Some(code);
        }
        let entries: Vec<_> = outputs
            .iter()
            .map(|(file, _)| PollEntry { file: Some(file.clone()), events: Events::IN })
            .collect();
        if entries.is_empty() {
            return Some(ended.await);
        }
        if let Either::Right((ended_code, _)) = select(poll_files(&entries), ended.as_mut()).await {
            code = Some(ended_code);
        }
    }
}

/// Reads what is there, at most [`MAX_PIECE`] bytes.
async fn read_piece(file: &OpenFile) -> Result<Vec<u8>, Errno> {
    // Without output, no buffer.
    if !file.ready().intersects(Events::IN | Events::ALWAYS) {
        return Err(Errno::EAGAIN);
    }
    let mut buffer = UserBuffer::of_bytes(&[0; MAX_PIECE]);
    let mut contents = buffer.clone();
    let count = file.read(&mut buffer).await?;
    let mut bytes = alloc::vec![0; count];
    contents.read(&mut bytes);
    Ok(bytes)
}
