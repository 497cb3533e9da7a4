//! A pager with pages of chosen colours.

use crate::regions::{Contents, FillError, Filler, FrameChoice, PageSize, Pager};

/// Fills 4 KiB pages at their first access, from memory of some colours only. Regions of different colours do not evict
/// each other's data from a cache (XOS III-B).
#[derive(Clone, Debug)]
pub struct Colored {
    colors: u32,
    /// The permitted colours, as bits.
    wanted: u64,
}

impl Colored {
    /// Returns a pager that uses, of `colors` colours (1 to 64), those whose bits are set in `wanted`; all if none is
    /// set.
    ///
    /// A cache of `s` bytes with `w` ways has `s / w / 4096` colours.
    pub const fn new(colors: u32, wanted: u64) -> Self {
        let colors = if colors == 0 {
            1
        } else if colors > 64 {
            64
        } else {
            colors
        };
        let all = u64::MAX >> (64 - colors);
        Self { colors, wanted: if wanted & all == 0 { all } else { wanted & all } }
    }

    /// Returns the colour of a page: the permitted ones in turn.
    fn color_of(&self, page: usize) -> u32 {
        let nth = page as u32 % self.wanted.count_ones();
        let rest = (0..nth).fold(self.wanted, |rest, _| rest & (rest - 1));
        rest.trailing_zeros()
    }
}

impl Pager for Colored {
    /// Returns false: other memory may have another colour.
    fn can_move(&self) -> bool {
        false
    }

    fn fault(&self, offset: usize, filler: &Filler<'_>) -> Result<(), FillError> {
        let page = offset / PageSize::FourKib.bytes();
        let frame = FrameChoice::Colored { color: self.color_of(page), colors: self.colors };
        filler.fill(page * PageSize::FourKib.bytes(), PageSize::FourKib, frame, Contents::Zero).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_get_the_permitted_colours_in_turn() {
        let pager = Colored::new(8, 0b1010_0100);
        assert_eq!([0, 1, 2, 3, 4].map(|page| pager.color_of(page)), [2, 5, 7, 2, 5]);
        assert_eq!([0, 1, 2].map(|page| Colored::new(2, 0).color_of(page)), [0, 1, 0]);
        assert_eq!(Colored::new(64, 1 << 63).color_of(9), 63);
        assert_eq!(Colored::new(0, 0).color_of(5), 0);
    }
}
