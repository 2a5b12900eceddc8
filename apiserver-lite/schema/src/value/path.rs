//! The path of a value in a tree: a chain of segments on the stack, formatted only for messages.

use std::fmt;

/// One segment below `parent`; the root has none.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: PathSegment<'a>,
}

#[derive(Clone, Copy)]
enum PathSegment<'a> {
    Root,
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    /// The root of an object.
    pub(crate) const ROOT: Path<'static> = Path { parent: None, segment: PathSegment::Root };

    /// The path of the field `name`.
    pub(crate) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), segment: PathSegment::Field(name) }
    }

    /// The path of the map entry `key`, formatted in brackets.
    pub(crate) fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), segment: PathSegment::Key(key) }
    }

    /// The path of the list item at `index`.
    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), segment: PathSegment::Index(index) }
    }
}

/// Longest name that is written of one segment, in bytes: an error must not grow with the keys of an object.
const SEGMENT_LEN_MAX: usize = 256;

/// The beginning of a name.
pub fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(SEGMENT_LEN_MAX)]
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.segment {
            PathSegment::Root => Ok(()),
            PathSegment::Key(key) => write!(f, "[{}]", cut(key)),
            PathSegment::Index(index) => write!(f, "[{index}]"),
            PathSegment::Field(name)
                if self.parent.is_none_or(|p| matches!(p.segment, PathSegment::Root)) =>
            {
                f.write_str(cut(name))
            }
            PathSegment::Field(name) => write!(f, ".{}", cut(name)),
        }
    }
}
