//! The id map: what is known of an Ebb on all machines of an application, kept by the first (EbbRT's `GlobalIdMap`).
//!
//! A value is a few bytes that mean something to the Ebb's representatives: where the one is that does the work, for
//! example. It is the machine's that set it: as long as that is connected, no other can change it or remove it. When it
//! has left, the value stays until another machine sets it, or it comes back under its number.
//!
//! | message | is answered by |
//! |---|---|
//! | `1`, id, value: to set it | nothing |
//! | `2`, id: to get it | `1`, value; `0` where there is none |
//! | `3`, id: to remove it | nothing |

use crate::error::{CallError, ServeError};
use crate::frame::Refusal;
use crate::messenger::{MESSENGER, Serving, call, serve};
use crate::served::Call;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::RefCell;
use isola_ebbs::{Ebb, EbbId, MachineId, Representative, ebb_id};
use isola_iobuf::{Chain, IoBuf};

/// Longest value, in bytes.
pub const MAX_VALUE: usize = 4096;

/// Most values of an application.
pub const MAX_VALUES: usize = 65_536;

const SET: u8 = 1;
const GET: u8 = 2;
const REMOVE: u8 = 3;

static ID_MAP: Ebb<IdMap> = Ebb::new();

const ID: EbbId = ebb_id!(ID_MAP);

/// The values, on the first machine.
#[derive(Default)]
struct IdMap {
    values: RefCell<BTreeMap<EbbId, Value>>,
}

struct Value {
    owner: MachineId,
    bytes: Vec<u8>,
}

impl Representative for IdMap {
    fn create() -> Self {
        Self::default()
    }
}

/// Keeps the map on this machine, which others join.
///
/// # Errors
/// [`ServeError`].
pub fn keep() -> Result<Serving, ServeError> {
    serve(ID, |call| core::future::ready(ID_MAP.answer(&call)))
}

/// Sets what is known of an Ebb. It is this machine's from now on.
///
/// # Errors
/// [`CallError`]: `Refused(NotYours)` where it is another machine's, `Refused(Failed)` where the map is full.
pub async fn set(ebb: EbbId, value: &[u8]) -> Result<(), CallError> {
    if value.len() > MAX_VALUE {
        return Err(CallError::TooLong);
    }
    ask(SET, ebb, value).await.map(drop)
}

/// Removes what is known of an Ebb, so that any machine can set it.
///
/// # Errors
/// [`CallError`]: `Refused(NotYours)` where it is another machine's.
pub async fn remove(ebb: EbbId) -> Result<(), CallError> {
    ask(REMOVE, ebb, &[]).await.map(drop)
}

/// What is known of an Ebb; `None` where nobody has set anything.
///
/// # Errors
/// [`CallError`].
pub async fn get(ebb: EbbId) -> Result<Option<Vec<u8>>, CallError> {
    let answer = ask(GET, ebb, &[]).await?.to_vec();
    match answer.split_first() {
        Some((0, [])) => Ok(None),
        Some((1, value)) => Ok(Some(value.to_vec())),
        _ => Err(CallError::Refused(Refusal::Malformed)),
    }
}

async fn ask(kind: u8, ebb: EbbId, value: &[u8]) -> Result<Chain, CallError> {
    let mut request = alloc::vec![kind];
    request.extend(ebb.as_u64().to_be_bytes());
    request.extend(value);
    call(MachineId::FIRST, ID, Chain::from(IoBuf::from(request))).await
}

impl IdMap {
    fn answer(&self, call: &Call) -> Result<Chain, Refusal> {
        let mut words = call.request.cursor();
        let kind = words.read_u8().ok_or(Refusal::Malformed)?;
        let ebb = words.read_u64_be().and_then(EbbId::from_u64).ok_or(Refusal::Malformed)?;
        let mut bytes = alloc::vec![0; words.remaining()];
        let mut values = self.values.borrow_mut();
        let is_taken = |value: &Value| value.owner != call.from && MESSENGER.is_there(value.owner);
        match kind {
            SET | REMOVE if values.get(&ebb).is_some_and(is_taken) => Err(Refusal::NotYours),
            SET if bytes.len() <= MAX_VALUE => {
                if values.len() >= MAX_VALUES && !values.contains_key(&ebb) {
                    return Err(Refusal::Failed);
                }
                words.read_slice(&mut bytes).ok_or(Refusal::Malformed)?;
                values.insert(ebb, Value { owner: call.from, bytes });
                Ok(Chain::new())
            }
            GET if bytes.is_empty() => {
                let mut answer = alloc::vec![u8::from(values.contains_key(&ebb))];
                answer.extend(values.get(&ebb).into_iter().flat_map(|value| &value.bytes));
                Ok(Chain::from(IoBuf::from(answer)))
            }
            REMOVE if bytes.is_empty() => {
                values.remove(&ebb);
                Ok(Chain::new())
            }
            _ => Err(Refusal::Malformed),
        }
    }
}
