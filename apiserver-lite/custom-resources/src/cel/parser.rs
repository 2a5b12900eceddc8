//! Texts to expressions.

use super::ast::{Expr, Fold, FoldKind, Kind, Operator};
use super::lexer::{Fault, Token, tokens};
use super::names::is_keyword;
use super::signatures;

/// Deepest nesting of an expression: each level takes stack when it is checked and run.
pub(crate) const DEPTH_MAX: usize = 50;
/// Most parts of an expression.
const PARTS_MAX: usize = 20_000;

/// What stands before the dot in names of functions: `optional.of`.
const NAMESPACES: [&str; 3] = ["format", "ip", "optional"];

/// Parses an expression.
pub(crate) fn parse(text: &str) -> Result<Expr, Fault> {
    let mut parser = Parser { tokens: tokens(text)?, next: 0, depth: 0, parts: 0 };
    let expr = parser.ternary()?;
    match parser.peek() {
        Token::End => {}
        other => {
            let why = format!("Syntax error: extraneous input {}", describe(other));
            return Err(Fault::new(parser.at(), why));
        }
    }
    Ok(expr)
}

fn too_deep() -> String {
    format!("Syntax error: expression is nested more than {DEPTH_MAX} levels deep")
}

fn describe(token: &Token) -> String {
    match token {
        Token::Ident(name) => format!("'{name}'"),
        Token::Punctuation(mark) => format!("'{mark}'"),
        Token::End => "'<EOF>'".to_owned(),
        _ => "literal".to_owned(),
    }
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    next: usize,
    depth: usize,
    parts: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(token, _)| token)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(0, |(_, at)| *at)
    }

    fn advance(&mut self) -> Token {
        let token = self.peek().clone();
        self.next = self.next.saturating_add(1);
        token
    }

    fn accept(&mut self, mark: &str) -> bool {
        let found = matches!(self.peek(), Token::Punctuation(have) if *have == mark);
        if found {
            self.next = self.next.saturating_add(1);
        }
        found
    }

    fn expect(&mut self, mark: &str) -> Result<(), Fault> {
        if self.accept(mark) {
            return Ok(());
        }
        let found = describe(self.peek());
        Err(Fault::new(
            self.at(),
            format!("Syntax error: mismatched input {found} expecting '{mark}'"),
        ))
    }

    fn make(&mut self, at: usize, kind: Kind) -> Result<Expr, Fault> {
        self.parts = self.parts.saturating_add(1);
        if self.parts > PARTS_MAX {
            return Err(Fault::new(
                at,
                format!("Syntax error: expression has more than {PARTS_MAX} parts"),
            ));
        }
        // Chains such as `a + b + c` nest to the left without nesting the parser.
        let below = kind.parts().iter().map(|part| part.depth).max().unwrap_or_default();
        if below >= DEPTH_MAX {
            return Err(Fault::new(at, too_deep()));
        }
        Ok(Expr { at, depth: below.saturating_add(1), kind })
    }

    fn ternary(&mut self) -> Result<Expr, Fault> {
        self.depth = self.depth.saturating_add(1);
        if self.depth > DEPTH_MAX {
            return Err(Fault::new(self.at(), too_deep()));
        }
        let condition = self.some()?;
        let at = self.at();
        let expr = if self.accept("?") {
            let then = self.some()?;
            self.expect(":")?;
            let otherwise = self.ternary()?;
            let kind = Kind::If {
                condition: Box::new(condition),
                then: Box::new(then),
                otherwise: Box::new(otherwise),
            };
            self.make(at, kind)?
        } else {
            condition
        };
        self.depth = self.depth.saturating_sub(1);
        Ok(expr)
    }

    fn some(&mut self) -> Result<Expr, Fault> {
        let first = self.every()?;
        let at = self.at();
        let mut parts = vec![first];
        while self.accept("||") {
            parts.push(self.every()?);
        }
        self.joined(at, parts, Kind::Some)
    }

    fn every(&mut self) -> Result<Expr, Fault> {
        let first = self.relation()?;
        let at = self.at();
        let mut parts = vec![first];
        while self.accept("&&") {
            parts.push(self.relation()?);
        }
        self.joined(at, parts, Kind::Every)
    }

    fn joined(
        &mut self,
        at: usize,
        mut parts: Vec<Expr>,
        join: fn(Vec<Expr>) -> Kind,
    ) -> Result<Expr, Fault> {
        match (parts.len(), parts.pop()) {
            (1, Some(only)) => Ok(only),
            (_, last) => {
                parts.extend(last);
                self.make(at, join(parts))
            }
        }
    }

    fn relation(&mut self) -> Result<Expr, Fault> {
        const RELATIONS: [(&str, Operator); 6] = [
            ("==", Operator::Equal),
            ("!=", Operator::NotEqual),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let mut left = self.sum()?;
        loop {
            let at = self.at();
            let is_in = matches!(self.peek(), Token::Ident(name) if name == "in");
            let found = RELATIONS.into_iter().find(|(mark, _)| self.accept(mark));
            let operator = match found {
                Some((_, operator)) => operator,
                None if is_in => {
                    self.next = self.next.saturating_add(1);
                    Operator::In
                }
                None => return Ok(left),
            };
            let right = self.sum()?;
            left = self.binary(at, operator, left, right)?;
        }
    }

    fn sum(&mut self) -> Result<Expr, Fault> {
        let mut left = self.product()?;
        loop {
            let at = self.at();
            let operator = if self.accept("+") {
                Operator::Add
            } else if self.accept("-") {
                Operator::Subtract
            } else {
                return Ok(left);
            };
            let right = self.product()?;
            left = self.binary(at, operator, left, right)?;
        }
    }

    fn product(&mut self) -> Result<Expr, Fault> {
        let mut left = self.unary()?;
        loop {
            let at = self.at();
            let operator = if self.accept("*") {
                Operator::Multiply
            } else if self.accept("/") {
                Operator::Divide
            } else if self.accept("%") {
                Operator::Remainder
            } else {
                return Ok(left);
            };
            let right = self.unary()?;
            left = self.binary(at, operator, left, right)?;
        }
    }

    fn binary(
        &mut self,
        at: usize,
        operator: Operator,
        left: Expr,
        right: Expr,
    ) -> Result<Expr, Fault> {
        self.make(at, Kind::Binary { operator, left: Box::new(left), right: Box::new(right) })
    }

    fn unary(&mut self) -> Result<Expr, Fault> {
        let at = self.at();
        let mut nots: usize = 0;
        while self.accept("!") {
            nots = nots.saturating_add(1);
        }
        if nots > 0 {
            let of = self.member()?;
            // An even number of `!` is none, but the operand still has to be a boolean.
            let once = self.make(at, Kind::Not(Box::new(of)))?;
            return if nots % 2 == 1 { Ok(once) } else { self.make(at, Kind::Not(Box::new(once))) };
        }
        let mut minuses: usize = 0;
        while self.accept("-") {
            minuses = minuses.saturating_add(1);
        }
        if minuses == 0 {
            return self.member();
        }
        match (minuses, self.peek().clone()) {
            (1, Token::Int(number)) => {
                self.next = self.next.saturating_add(1);
                let number = 0_i64.checked_sub_unsigned(number);
                let number =
                    number.ok_or_else(|| Fault::new(at, "Syntax error: invalid int literal"))?;
                let literal = self.make(at, Kind::Int(number))?;
                self.members_of(literal)
            }
            (1, Token::Double(number)) => {
                self.next = self.next.saturating_add(1);
                let literal = self.make(at, Kind::Double(-number))?;
                self.members_of(literal)
            }
            _ => {
                let of = self.member()?;
                let once = self.make(at, Kind::Negate(Box::new(of)))?;
                if minuses % 2 == 1 {
                    Ok(once)
                } else {
                    self.make(at, Kind::Negate(Box::new(once)))
                }
            }
        }
    }

    fn member(&mut self) -> Result<Expr, Fault> {
        let primary = self.primary()?;
        self.members_of(primary)
    }

    fn members_of(&mut self, mut expr: Expr) -> Result<Expr, Fault> {
        loop {
            let at = self.at();
            if self.accept(".") {
                let optional = self.accept("?");
                let field = match self.advance() {
                    Token::Ident(name) => name,
                    other => {
                        let why = format!(
                            "Syntax error: no viable alternative at input '.{}'",
                            describe(&other)
                        );
                        return Err(Fault::new(at, why));
                    }
                };
                expr = if optional {
                    self.make(at, Kind::OptionalSelect { of: Box::new(expr), field })?
                } else if self.accept("(") {
                    let args = self.list(")")?;
                    self.method(at, expr, field, args)?
                } else {
                    self.make(at, Kind::Select { of: Box::new(expr), field })?
                };
            } else if self.accept("[") {
                let optional = self.accept("?");
                let (of, index) = (Box::new(expr), Box::new(self.ternary()?));
                self.expect("]")?;
                let kind = match optional {
                    true => Kind::OptionalIndex { of, at: index },
                    false => Kind::Index { of, at: index },
                };
                expr = self.make(at, kind)?;
            } else {
                return Ok(expr);
            }
        }
    }

    /// Expressions up to the closing mark.
    fn list(&mut self, close: &str) -> Result<Vec<Expr>, Fault> {
        let mut parts = Vec::new();
        while !self.accept(close) {
            parts.push(self.ternary()?);
            if !self.accept(",") {
                self.expect(close)?;
                break;
            }
        }
        Ok(parts)
    }

    fn primary(&mut self) -> Result<Expr, Fault> {
        let at = self.at();
        if self.accept("(") {
            let inner = self.ternary()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.accept("[") {
            let parts = self.list("]")?;
            return self.make(at, Kind::List(parts));
        }
        if self.accept("{") {
            return self.map(at);
        }
        self.accept("."); // `.name` is a name at the root, as all are here
        let kind = match self.advance() {
            Token::Int(number) => match i64::try_from(number) {
                Ok(number) => Kind::Int(number),
                Err(_) => return Err(Fault::new(at, "Syntax error: invalid int literal")),
            },
            Token::Uint(number) => Kind::Uint(number),
            Token::Double(number) => Kind::Double(number),
            Token::Text(text) => Kind::Text(text),
            Token::Bytes(bytes) => Kind::Bytes(bytes),
            Token::Ident(name) => return self.name(at, name),
            other => {
                let found = describe(&other);
                let why = format!("Syntax error: mismatched input {found} expecting an expression");
                return Err(Fault::new(at, why));
            }
        };
        self.make(at, kind)
    }

    fn map(&mut self, at: usize) -> Result<Expr, Fault> {
        let mut entries = Vec::new();
        while !self.accept("}") {
            let key = self.ternary()?;
            self.expect(":")?;
            entries.push((key, self.ternary()?));
            if !self.accept(",") {
                self.expect("}")?;
                break;
            }
        }
        self.make(at, Kind::Map(entries))
    }

    fn name(&mut self, at: usize, name: String) -> Result<Expr, Fault> {
        match name.as_str() {
            "true" | "false" => return self.make(at, Kind::Bool(name == "true")),
            "null" => return self.make(at, Kind::Null),
            word if is_keyword(word) => {
                return Err(Fault::new(at, format!("reserved identifier: {name}")));
            }
            _ => {}
        }
        if !self.accept("(") {
            let name = if name == "google" { self.type_of_protobuf() } else { name };
            return self.make(at, Kind::Ident(name));
        }
        let mut args = self.list(")")?;
        if name != "has" {
            return self.make(at, Kind::Call { name, target: None, args });
        }
        match (args.len(), args.pop().map(|arg| arg.kind)) {
            (1, Some(Kind::Select { of, field })) => self.make(at, Kind::Has { of, field }),
            _ => Err(Fault::new(at, "invalid argument to has() macro")),
        }
    }

    /// What `google` begins: the name of a type, such as `google.protobuf.Duration`.
    fn type_of_protobuf(&mut self) -> String {
        let is = |at: usize, wanted: &Token| {
            self.tokens.get(self.next.saturating_add(at)).is_some_and(|(token, _)| token == wanted)
        };
        let dot = Token::Punctuation(".");
        let begins = is(0, &dot) && is(1, &Token::Ident("protobuf".to_owned())) && is(2, &dot);
        let found = ["Duration", "Timestamp"]
            .into_iter()
            .find(|name| begins && is(3, &Token::Ident((*name).to_owned())));
        let Some(name) = found else { return "google".to_owned() };
        self.next = self.next.saturating_add(4);
        format!("google.protobuf.{name}")
    }

    /// A call of a method, or a macro.
    fn method(
        &mut self,
        at: usize,
        target: Expr,
        name: String,
        args: Vec<Expr>,
    ) -> Result<Expr, Fault> {
        if let Kind::Ident(of) = &target.kind
            && NAMESPACES.contains(&of.as_str())
        {
            let name = format!("{of}.{name}");
            if signatures::exists(&name) {
                return self.make(at, Kind::Call { name, target: None, args });
            }
        }
        let kind = match (name.as_str(), args.len()) {
            ("optMap", 2) => FoldKind::OptMap,
            ("optFlatMap", 2) => FoldKind::OptFlatMap,
            ("all", 2) => FoldKind::All,
            ("exists", 2) => FoldKind::Exists,
            ("exists_one", 2) => FoldKind::ExistsOne,
            ("map", 2 | 3) => FoldKind::Map,
            ("filter", 2) => FoldKind::Filter,
            _ => {
                return self.make(at, Kind::Call { name, target: Some(Box::new(target)), args });
            }
        };
        let mut args = args.into_iter();
        let var = match args.next().map(|arg| arg.kind) {
            Some(Kind::Ident(name)) => name,
            _ => return Err(Fault::new(at, "argument is not an identifier")),
        };
        let Some(body) = args.next() else {
            return Err(Fault::new(at, "macro has too few arguments"));
        };
        let fold = Fold { kind, range: target, var, body, mapped: args.next() };
        self.make(at, Kind::Fold(Box::new(fold)))
    }
}
