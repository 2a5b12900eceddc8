//! Lines that are looked at through a window: a page of text, or a log, which stays at its end while it grows.

/// Which part of the lines is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Lines above the window.
    pub top: usize,
    /// Characters left of the window.
    pub left: usize,
    /// Whether it stays at the end.
    pub follows: bool,
}

/// How far a key moves the window to the side.
const SIDE_STEP: usize = 8;

impl Window {
    /// At the end, and staying there.
    pub fn at_end() -> Self {
        Self { follows: true, ..Self::default() }
    }

    /// The first line that is shown, of `count` lines in a window of `height`.
    pub fn first(&self, count: usize, height: usize) -> usize {
        let last = count.saturating_sub(height);
        if self.follows { last } else { self.top.min(last) }
    }

    /// Moves up and down; at the end it begins to follow if it did so before (`may_follow`).
    pub fn scroll(&mut self, lines: isize, count: usize, height: usize, may_follow: bool) {
        let last = count.saturating_sub(height);
        self.top = self.first(count, height).saturating_add_signed(lines).min(last);
        self.follows = may_follow && lines > 0 && self.top == last;
    }

    /// Moves to the side.
    pub fn shift(&mut self, to_the_right: bool) {
        let moved = if to_the_right {
            self.left.saturating_add(SIDE_STEP)
        } else {
            self.left.saturating_sub(SIDE_STEP)
        };
        self.left = moved.min(crate::text::LINE_LEN_MAX);
    }

    /// When lines before the first one go, what is shown stays.
    pub fn lose(&mut self, lines: usize) {
        self.top = self.top.saturating_sub(lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_follows_until_it_is_moved() {
        let mut window = Window::at_end();
        assert_eq!(window.first(100, 10), 90);
        window.scroll(-1, 100, 10, true);
        assert_eq!((window.first(100, 10), window.first(200, 10)), (89, 89));
        window.scroll(1, 100, 10, true);
        assert_eq!(window.first(200, 10), 190);
        window.scroll(isize::MIN, 200, 10, true);
        assert_eq!(window.first(200, 10), 0);
        window.scroll(isize::MAX, 5, 10, false);
        assert_eq!((window.first(5, 10), window.follows), (0, false));
    }
}
