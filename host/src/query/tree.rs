//! The order of activities in a tree. Ids and parents come from a cell, which can answer anything.

use std::collections::BTreeMap;

/// Returns items in the order of a tree, parents before their children, each with its level. Items with the same parent
/// keep their order. Every item occurs once: an item without a known parent, or in a circle of parents, is at the top.
pub fn in_tree_order<T>(
    items: &[T],
    id: impl Fn(&T) -> Option<u32>,
    parent: impl Fn(&T) -> Option<u32>,
) -> Vec<(usize, &T)> {
    // Of items with the same id, the first is the parent.
    let mut by_id = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        if let Some(id) = id(item) {
            by_id.entry(id).or_insert(index);
        }
    }
    let mut children = vec![Vec::new(); items.len()];
    let mut tops = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match parent(item).and_then(|parent| by_id.get(&parent)) {
            Some(above) if *above != index => children[*above].push(index),
            _ => tops.push(index),
        }
    }
    let mut listed = vec![false; items.len()];
    let mut order = Vec::with_capacity(items.len());
    // Items in circles are below no item without a parent: they follow.
    for top in tops.into_iter().chain(0..items.len()) {
        let mut open = vec![(0, top)];
        while let Some((level, index)) = open.pop() {
            if std::mem::replace(&mut listed[index], true) {
                continue;
            }
            order.push((level, &items[index]));
            open.extend(children[index].iter().rev().map(|child| (level + 1, *child)));
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(items: &[(u32, Option<u32>)]) -> Vec<(usize, u32)> {
        let ordered = in_tree_order(items, |item| Some(item.0), |item| item.1);
        ordered.into_iter().map(|(level, item)| (level, item.0)).collect()
    }

    #[test]
    fn children_follow_their_parent_in_their_order() {
        let items = [(4, Some(1)), (1, None), (2, None), (5, Some(4)), (3, Some(1)), (9, Some(77))];
        assert_eq!(order(&items), [(0, 1), (1, 4), (2, 5), (1, 3), (0, 2), (0, 9)]);
    }

    #[test]
    fn items_in_a_circle_of_parents_are_listed_once() {
        assert_eq!(order(&[(1, Some(2)), (2, Some(1)), (3, Some(3))]), [(0, 3), (0, 1), (1, 2)]);
    }

    proptest! {
        #[test]
        fn every_item_is_listed_once_whatever_the_cell_answers(
            items in proptest::collection::vec((0..8_u32, proptest::option::of(0..8_u32)), 0..200)
        ) {
            let mut listed: Vec<u32> = order(&items).into_iter().map(|(_, id)| id).collect();
            let mut expected: Vec<u32> = items.iter().map(|(id, _)| *id).collect();
            listed.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(listed, expected);
        }
    }
}
