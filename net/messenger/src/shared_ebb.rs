//! Ebbs with one representative in the whole application; on other machines, a call becomes a message.

use crate::error::{CallError, ServeError};
use crate::frame::Refusal;
use crate::handlers::Call;
use crate::id_map;
use crate::messenger::{HandlerRegistration, call, is_served, serve};
use core::cell::Cell;
use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use isola_ebbs::{Ebb, EbbId, MachineId, Representative};
use isola_events::spawn_task;
use isola_iobuf::Chain;

/// A value with an encoding as bytes. `from_chain` must validate its input, which may be any bytes.
pub trait Message: Sized {
    /// Encodes the message.
    fn into_chain(self) -> Chain;

    /// Decodes a message; `None` if the bytes are invalid.
    fn from_chain(bytes: Chain) -> Option<Self>;
}

/// The request and answer types of a [`SharedEbb`].
pub trait Interface: 'static {
    /// The request.
    type Request: Message + 'static;
    /// The answer.
    type Answer: Message + 'static;
}

/// A reference to an Ebb with one representative in the whole application, declared as a `static`.
///
/// The machine that [serves](Self::serve) it is its home. All machines and cores call it by [`SharedEbb::ask`].
pub struct SharedEbb<I> {
    id: EbbId,
    home: Ebb<Home>,
    interface: PhantomData<fn() -> I>,
}

/// The home of an Ebb, as far as a core knows it.
struct Home(Cell<Option<MachineId>>);

impl Representative for Home {
    fn create() -> Self {
        Self(Cell::new(None))
    }
}

/// The reason why a [`SharedEbb`] did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskError {
    /// No machine of the application serves it.
    NoHome,
    /// Its home answered with invalid bytes.
    Malformed,
    /// The call failed.
    Call(CallError),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHome => f.write_str("no machine of the application serves that Ebb"),
            Self::Malformed => f.write_str(
                "the machine that serves the Ebb sent an invalid answer: check that it has the same version",
            ),
            Self::Call(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for AskError {}

impl From<CallError> for AskError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// Allows any machine to become the home of an Ebb that this machine no longer serves.
fn release(ebb: EbbId) {
    spawn_task(async move {
        // The Ebb may be served again by now. Without a connection to the first machine, its value loses its owner
        // anyway.
        if !is_served(ebb) {
            let _ = id_map::remove(ebb).await;
        }
    })
    .detach();
}

impl<I: Interface> SharedEbb<I> {
    /// Returns a reference to the Ebb with this id: `SharedEbb::new(ebb_id!(FILES))` for `static FILES`.
    pub const fn new(id: EbbId) -> Self {
        Self { id, home: Ebb::new(), interface: PhantomData }
    }

    /// Makes this machine the Ebb's home until the returned value is dropped: `handler` answers requests. Records the
    /// home in the id map.
    ///
    /// # Errors
    /// [`ServeError`]; and the outer error if the first machine cannot be reached, or the Ebb's home is another machine
    /// that is still connected (`Refused(NotYours)`).
    pub async fn serve<F>(
        &self,
        handler: impl Fn(MachineId, I::Request) -> F + 'static,
    ) -> Result<Result<HandlerRegistration, ServeError>, CallError>
    where
        F: Future<Output = Result<I::Answer, Refusal>> + 'static,
    {
        let serving = serve(self.id, move |Call { from, request }| {
            let answer = I::Request::from_chain(request).map(|request| handler(from, request));
            async move { Ok(answer.ok_or(Refusal::Malformed)?.await?.into_chain()) }
        });
        let Ok(serving) = serving else { return Ok(serving) };
        id_map::set(self.id, &MachineId::here().number().to_be_bytes()).await?;
        Ok(Ok(serving.on_release(release)))
    }

    /// Sends the Ebb a request, wherever its home is.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn ask(&self, request: I::Request) -> Result<I::Answer, AskError> {
        let home = match self.home.0.get() {
            Some(home) => home,
            None => self.find().await?,
        };
        let answer = call(home, self.id, request.into_chain()).await;
        if let Err(
            CallError::NoSuchMachine
            | CallError::Refused(Refusal::NoSuchEbb | Refusal::Disconnected | Refusal::NoSuchMachine),
        ) = answer
        {
            // The home may have changed: the next call looks it up again.
            self.home.0.set(None);
        }
        I::Answer::from_chain(answer?).ok_or(AskError::Malformed)
    }

    async fn find(&self) -> Result<MachineId, AskError> {
        let value = id_map::get(self.id).await?.ok_or(AskError::NoHome)?;
        let number = <[u8; 4]>::try_from(value.as_slice()).map(u32::from_be_bytes);
        let home = number.ok().and_then(MachineId::new).ok_or(AskError::Malformed)?;
        self.home.0.set(Some(home));
        Ok(home)
    }
}
