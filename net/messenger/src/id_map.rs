//! The id map: what is known of an Ebb on all machines of an application, kept by the first (EbbRT's `GlobalIdMap`).
//!
//! A value is a few bytes that mean something to the Ebb's representatives: where the one is that does the work, for
//! example. Messages are `1 | id | value` to set it (answered by nothing), and `2 | id` to get it (answered by
//! `1 | value`, or `0` where there is none).

use crate::error::{CallError, ServeError};
use crate::frame::Refusal;
use crate::messenger::{Serving, call, serve};
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

static ID_MAP: Ebb<IdMap> = Ebb::new();

const ID: EbbId = ebb_id!(ID_MAP);

/// The values, on the first machine.
#[derive(Default)]
struct IdMap {
    values: RefCell<BTreeMap<EbbId, Vec<u8>>>,
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

/// Sets what is known of an Ebb.
///
/// # Errors
/// [`CallError`]: `Refused(Failed)` where the map is full.
pub async fn set(ebb: EbbId, value: &[u8]) -> Result<(), CallError> {
    if value.len() > MAX_VALUE {
        return Err(CallError::TooLong);
    }
    let mut request = alloc::vec![SET];
    request.extend(ebb.as_u64().to_be_bytes());
    request.extend(value);
    call(MachineId::FIRST, ID, Chain::from(IoBuf::from(request))).await.map(drop)
}

/// What is known of an Ebb; `None` where nobody has set anything.
///
/// # Errors
/// [`CallError`].
pub async fn get(ebb: EbbId) -> Result<Option<Vec<u8>>, CallError> {
    let mut request = alloc::vec![GET];
    request.extend(ebb.as_u64().to_be_bytes());
    let answer = call(MachineId::FIRST, ID, Chain::from(IoBuf::from(request))).await?.to_vec();
    match answer.split_first() {
        Some((0, [])) => Ok(None),
        Some((1, value)) => Ok(Some(value.to_vec())),
        _ => Err(CallError::Refused(Refusal::Malformed)),
    }
}

impl IdMap {
    fn answer(&self, call: &Call) -> Result<Chain, Refusal> {
        let mut words = call.request.cursor();
        let kind = words.read_u8().ok_or(Refusal::Malformed)?;
        let ebb = words.read_u64_be().and_then(EbbId::from_u64).ok_or(Refusal::Malformed)?;
        let mut value = alloc::vec![0; words.remaining()];
        let mut values = self.values.borrow_mut();
        match kind {
            SET if value.len() <= MAX_VALUE => {
                if values.len() >= MAX_VALUES && !values.contains_key(&ebb) {
                    return Err(Refusal::Failed);
                }
                words.read_slice(&mut value).ok_or(Refusal::Malformed)?;
                values.insert(ebb, value);
                Ok(Chain::new())
            }
            GET if value.is_empty() => {
                let mut answer = alloc::vec![u8::from(values.contains_key(&ebb))];
                answer.extend(values.get(&ebb).into_iter().flatten());
                Ok(Chain::from(IoBuf::from(answer)))
            }
            _ => Err(Refusal::Malformed),
        }
    }
}
