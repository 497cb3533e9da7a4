//! The memory to which an activity is entitled.

use super::EntitlementError;
use serde::{Deserialize, Serialize};

/// The budget of an activity at the resource `memory`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemoryBudget {
    /// While the activity uses no more, it loses no memory to others. `None`: an equal part of the memory that no soft
    /// budget covers, and no guarantee.
    pub soft: Option<u64>,
    /// The most: the activity frees its own memory above that, even if the cell has more. `None`: all memory.
    pub hard: Option<u64>,
}

/// A new value of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BudgetChange {
    /// None.
    None,
    /// This many bytes.
    Bytes(u64),
}

impl BudgetChange {
    /// Returns the value, if there is one.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

impl MemoryBudget {
    /// Returns whether neither is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Verifies that the values agree.
    ///
    /// # Errors
    /// [`EntitlementError::SoftAboveHard`].
    pub fn check(&self) -> Result<(), EntitlementError> {
        match (self.soft, self.hard) {
            (Some(soft), Some(hard)) if soft > hard => Err(EntitlementError::SoftAboveHard { soft, hard }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_soft_budget_above_the_hard_one_is_an_error_that_says_what_to_do() {
        let budget = |soft, hard| MemoryBudget { soft: Some(soft), hard: Some(hard) };
        assert!(budget(2, 2).check().is_ok());
        let error = budget(3 << 20, 2 << 20).check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "soft budget 3 MiB above the hard one of 2 MiB: lower the soft budget or raise the hard one"
        );
    }
}
