//! Shuffle sharding: the few queues of a level that one flow may use. Two flows seldom have the same, so that one that floods leaves others a queue.

/// Most cards that are dealt. A number of 64 bits has no entropy for more of any deck.
pub(crate) const HAND_MAX: usize = 32;

/// The cards of a hand: `len` different numbers below the size of the deck.
pub(crate) struct QueueHand {
    cards: [usize; HAND_MAX],
    len: usize,
}

impl QueueHand {
    /// Deals `len` of `deck` cards, the same ones for the same `number`.
    pub(crate) fn deal(number: u64, deck: usize, len: usize) -> Self {
        let len = len.min(deck).min(HAND_MAX);
        let mut cards = [0; HAND_MAX];
        let mut rest = number;
        // Of the cards that are left when it is dealt, each is the one with this rank.
        for (card, left) in cards.iter_mut().take(len).zip((1..=deck).rev()) {
            let left = u64::try_from(left).unwrap_or(u64::MAX);
            *card = usize::try_from(rest.checked_rem(left).unwrap_or_default()).unwrap_or_default();
            rest = rest.checked_div(left).unwrap_or_default();
        }
        // From the last to the first: an earlier card of the same or a lower rank moves the later one up.
        let ranks = cards;
        for (at, card) in cards.iter_mut().enumerate().take(len) {
            for earlier in ranks.iter().take(at).rev() {
                if *card >= *earlier {
                    *card = card.saturating_add(1);
                }
            }
        }
        Self { cards, len }
    }

    pub(crate) fn cards(&self) -> impl Iterator<Item = usize> {
        self.cards.iter().copied().take(self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_hand_of_a_small_deck_is_dealt_equally_often() {
        let mut counts = std::collections::BTreeMap::new();
        for number in 0..(4 * 3) * 10 {
            let hand: Vec<usize> = QueueHand::deal(number, 4, 2).cards().collect();
            *counts.entry(hand).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 12, "{counts:?}");
        assert!(counts.values().all(|count| *count == 10), "{counts:?}");
    }

    proptest! {
        #[test]
        fn cards_differ_and_are_of_the_deck(number: u64, deck in 0..2000_usize, len in 0..100_usize) {
            let hand: Vec<usize> = QueueHand::deal(number, deck, len).cards().collect();
            prop_assert_eq!(hand.len(), len.min(deck).min(HAND_MAX));
            prop_assert!(hand.iter().all(|card| *card < deck));
            let different: BTreeSet<usize> = hand.iter().copied().collect();
            prop_assert_eq!(different.len(), hand.len());
        }
    }
}
