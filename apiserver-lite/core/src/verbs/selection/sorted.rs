//! A set of texts that is made once and looked up often (pure).

/// Texts in their order, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct SortedTexts(Box<[Box<str>]>);

impl SortedTexts {
    /// Those that are in any of several sets, given one after the other.
    pub(super) fn in_any<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        Self::in_all(texts, 1)
    }

    /// Those that are in all of `sets` sets, given one after the other; a set has no text twice unless one is enough.
    pub(super) fn in_all<'a>(texts: impl Iterator<Item = &'a str>, sets: usize) -> Self {
        let mut texts: Vec<&str> = texts.collect();
        texts.sort_unstable();
        let runs = texts.chunk_by(|one, next| one == next).filter(|run| run.len() >= sets);
        Self(runs.filter_map(|run| run.first().copied().map(Box::from)).collect())
    }

    /// Whether `text` is one of them.
    pub(super) fn has(&self, text: &str) -> bool {
        self.0.binary_search_by(|one| (**one).cmp(text)).is_ok()
    }

    /// The first of them.
    pub(super) fn first(&self) -> Option<&str> {
        self.0.first().map(|text| &**text)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
