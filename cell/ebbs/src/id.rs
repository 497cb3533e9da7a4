//! Ids of Ebbs that are valid on all machines of an application.
//!
//! ```text
//! bit 63                    32 31                     0
//!    | 1 |        hash of the Ebb's path               |   well-known: the same wherever the source is the same
//!    | 0 |  machine, not 0    |  number, not 0         |   dynamic: issued by that machine
//! ```
//!
//! A well-known id is a hash of the path of the item that [`ebb_id!`](crate::ebb_id) names. The compiler refuses two
//! items of one name in one module, and Cargo two packages of one name and version, so paths are unique. A dynamic id
//! contains the number of the machine that issues it, so machines issue ids without communication.

use core::fmt;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::CellEbb;
use crate::representative::Representative;

/// The id of an Ebb, on all machines of an application.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EbbId(NonZeroU64);

/// A machine of an application: a native cell or a hosted process. The first one, which the others join, is
/// [`MachineId::FIRST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineId(u32);

/// The reason why a machine issues no id or gets no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdError {
    /// The machine has issued all its 2^32 - 1 ids.
    Exhausted,
    /// The machine already has another number, possibly with ids issued under it.
    Numbered,
}

const WELL_KNOWN: u64 = 1 << 63;

/// The number of this cell among the machines of its application, and the count of its ids.
static MACHINE_IDS: CellEbb<MachineIds> = CellEbb::new();

/// The machine's number in the upper half (0: none yet), and the count of its issued ids in the lower half.
struct MachineIds(AtomicU64);

impl Representative for MachineIds {
    fn create() -> Self {
        Self(AtomicU64::new(0))
    }
}

/// Returns the machine's number in a state of [`MachineIds`]. A machine without a number is the first.
const fn machine_of(state: u64) -> u32 {
    let number = (state >> 32) as u32;
    if number == 0 { MachineId::FIRST.0 } else { number }
}

impl MachineId {
    /// The machine that the others join.
    pub const FIRST: Self = Self(1);

    /// Returns the machine with this number; `None` for 0, and for numbers of more than 31 bits.
    pub const fn new(number: u32) -> Option<Self> {
        if number == 0 || number >> 31 != 0 { None } else { Some(Self(number)) }
    }

    /// Returns the machine's number.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns this machine; [`MachineId::FIRST`] if it has no other number.
    pub fn here() -> Self {
        Self(machine_of(MACHINE_IDS.0.load(Ordering::Relaxed)))
    }

    /// Sets the number of this cell's machine. To be called before the cell issues any id.
    ///
    /// # Errors
    /// [`IdError::Numbered`] if the cell has another number, or has issued ids as the first machine.
    pub fn become_here(self) -> Result<(), IdError> {
        let take = |state: u64| match state {
            0 => Some(u64::from(self.0) << 32),
            state if machine_of(state) == self.0 => Some(state),
            _ => None,
        };
        let taken = MACHINE_IDS.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|_| IdError::Numbered)
    }
}

impl EbbId {
    /// Returns the id of the item at this path. [`ebb_id!`](crate::ebb_id) supplies the module.
    pub const fn of_path(module: &str, name: &str) -> Self {
        let hash = hash(hash(hash(0xcbf2_9ce4_8422_2325, module.as_bytes()), b"::"), name.as_bytes());
        match NonZeroU64::new(hash | WELL_KNOWN) {
            Some(id) => Self(id),
            None => panic!("a number with its highest bit set is not 0"),
        }
    }

    /// Issues a new id, unique in the application.
    ///
    /// # Errors
    /// [`IdError::Exhausted`].
    pub fn fresh() -> Result<Self, IdError> {
        let count = |state: u64| {
            let number = (state as u32).checked_add(1)?;
            Some(u64::from(machine_of(state)) << 32 | u64::from(number))
        };
        let before = MACHINE_IDS.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        let id = before.ok().and_then(count).and_then(NonZeroU64::new);
        id.map(Self).ok_or(IdError::Exhausted)
    }

    /// Returns the id as a number, for messages.
    pub const fn as_u64(self) -> u64 {
        self.0.get()
    }

    /// Returns the id of a number from a message; `None` if the number is not a valid id.
    pub const fn from_u64(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(id) if number & WELL_KNOWN != 0 || (number >> 32 != 0 && number as u32 != 0) => {
                Some(Self(id))
            }
            _ => None,
        }
    }

    /// Returns the machine that issued the id; `None` for a well-known one.
    pub const fn machine(self) -> Option<MachineId> {
        if self.0.get() & WELL_KNOWN != 0 { None } else { MachineId::new((self.0.get() >> 32) as u32) }
    }
}

impl fmt::Debug for EbbId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.machine() {
            Some(machine) => write!(f, "EbbId({}/{})", machine.0, self.0.get() as u32),
            None => write!(f, "EbbId({:016x})", self.0),
        }
    }
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exhausted => "this machine has given out all its Ebb ids",
            Self::Numbered => "this machine has a number already: join an application before Ebbs are made",
        })
    }
}

impl core::error::Error for IdError {}

/// FNV-1a: names are few and short, and come from the source, not from an attacker.
const fn hash(mut state: u64, bytes: &[u8]) -> u64 {
    let mut index = 0;
    while index < bytes.len() {
        state = (state ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        index += 1;
    }
    state
}

/// Returns the well-known [`EbbId`] of an item of this module: `ebb_id!(FILES)` next to `static FILES`.
///
/// The item has to exist in this module; otherwise the macro does not compile.
///
/// ```compile_fail
/// const ID: isola_ebbs::EbbId = isola_ebbs::ebb_id!(NOTHING_OF_THAT_NAME);
/// ```
#[macro_export]
macro_rules! ebb_id {
    ($name:ident) => {{
        // Fails if the module has no such item.
        #[allow(unused_imports)]
        use self::$name as _;
        $crate::EbbId::of_path(::core::module_path!(), ::core::stringify!($name))
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    static HERE: u8 = 0;
    static THERE: u8 = 0;

    #[test]
    fn items_of_different_names_or_modules_have_different_ids() {
        const IDS: [EbbId; 3] = [ebb_id!(HERE), ebb_id!(THERE), EbbId::of_path("elsewhere", "HERE")];
        assert_eq!(IDS[0], EbbId::of_path(module_path!(), "HERE"));
        assert!(IDS[0] != IDS[1] && IDS[0] != IDS[2] && IDS[1] != IDS[2]);
        assert_ne!(EbbId::of_path("a", "bc"), EbbId::of_path("ab", "c"));
        assert_eq!((HERE, THERE), (0, 0));
        assert!(IDS.iter().all(|id| id.machine().is_none()));
    }

    #[test]
    fn invalid_ids_in_messages_are_refused() {
        for bad in [0, 7, 1 << 32, 0x7fff_ffff_0000_0000] {
            assert_eq!(EbbId::from_u64(bad), None, "{bad:#x}");
        }
        let dynamic = EbbId::from_u64(5 << 32 | 9).unwrap();
        assert_eq!(dynamic.machine(), MachineId::new(5));
        assert_eq!(EbbId::from_u64(ebb_id!(HERE).as_u64()), Some(ebb_id!(HERE)));
        assert_eq!(MachineId::new(0), None);
        assert_eq!(MachineId::new(1 << 31), None);
    }
}
