//! Expressions.

/// An expression and where it is in the text, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    pub(crate) at: usize,
    /// Levels of expressions, itself included.
    pub(crate) depth: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Ident(String),
    Select {
        of: Box<Expr>,
        field: String,
    },
    /// `of.?field`
    OptionalSelect {
        of: Box<Expr>,
        field: String,
    },
    /// `of[?at]`
    OptionalIndex {
        of: Box<Expr>,
        at: Box<Expr>,
    },
    /// The macro `has`.
    Has {
        of: Box<Expr>,
        field: String,
    },
    Index {
        of: Box<Expr>,
        at: Box<Expr>,
    },
    Call {
        name: String,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary {
        operator: Operator,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    /// `a && b && c`
    Every(Vec<Expr>),
    /// `a || b || c`
    Some(Vec<Expr>),
    If {
        condition: Box<Expr>,
        then: Box<Expr>,
        otherwise: Box<Expr>,
    },
    /// A macro over a list or the keys of a map.
    Fold(Box<Fold>),
}

impl Kind {
    /// The expressions below it.
    pub(crate) fn parts(&self) -> Vec<&Expr> {
        match self {
            Kind::Select { of, .. }
            | Kind::OptionalSelect { of, .. }
            | Kind::Has { of, .. }
            | Kind::Not(of)
            | Kind::Negate(of) => vec![of],
            Kind::Index { of, at } | Kind::OptionalIndex { of, at } => vec![of, at],
            Kind::Call { target, args, .. } => target.as_deref().into_iter().chain(args).collect(),
            Kind::List(parts) | Kind::Every(parts) | Kind::Some(parts) => parts.iter().collect(),
            Kind::Map(entries) => entries.iter().flat_map(|(key, value)| [key, value]).collect(),
            Kind::Binary { left, right, .. } => vec![left, right],
            Kind::If { condition, then, otherwise } => vec![condition, then, otherwise],
            Kind::Fold(fold) => {
                [&fold.range, &fold.body].into_iter().chain(fold.mapped.as_ref()).collect()
            }
            _ => Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
}

impl Operator {
    /// The name of its function in messages.
    pub(crate) fn function(self) -> &'static str {
        match self {
            Operator::Add => "_+_",
            Operator::Subtract => "_-_",
            Operator::Multiply => "_*_",
            Operator::Divide => "_/_",
            Operator::Remainder => "_%_",
            Operator::Equal => "_==_",
            Operator::NotEqual => "_!=_",
            Operator::Less => "_<_",
            Operator::LessOrEqual => "_<=_",
            Operator::Greater => "_>_",
            Operator::GreaterOrEqual => "_>=_",
            Operator::In => "@in",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fold {
    pub(crate) kind: FoldKind,
    pub(crate) range: Expr,
    pub(crate) var: String,
    /// The condition; for `map` with two arguments what an item becomes.
    pub(crate) body: Expr,
    /// What an item becomes, for `map` with a condition.
    pub(crate) mapped: Option<Expr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldKind {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    /// `optMap`, over the value of an optional.
    OptMap,
    /// `optFlatMap`, whose result is an optional already.
    OptFlatMap,
}

impl FoldKind {
    /// Whether it is over the value of an optional, not over items.
    pub(crate) fn is_of_optional(self) -> bool {
        matches!(self, FoldKind::OptMap | FoldKind::OptFlatMap)
    }
}
