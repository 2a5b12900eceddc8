//! Estimated costs of operators and functions: those of Kubernetes, because they decide which rules a definition may have. What a run really takes is
//! counted by [`super::cost`] and bounded there, also where these estimates count a single step.

use super::cost::CHECK;
use super::types::{SizedType, Ty};

/// Steps to look for an address in a block: a tenth of twice the 16 bytes of an address.
const CONTAINS_IP: u64 = 4;
/// Steps to look for a block in another one, which is masked as well.
const CONTAINS_CIDR: u64 = 7;
/// Steps of a named format for ten bytes, as of a regular expression of 128 bytes.
const FORMAT: u64 = 32;

/// A tenth, rounded up: steps to walk a text.
fn tenth(size: u64) -> u64 {
    size.div_ceil(10)
}

/// The most elements of a value; a value without elements counts as one, and one with fields as none.
fn size(decl: &SizedType) -> u64 {
    match decl.ty {
        Ty::Bool | Ty::Int | Ty::Uint | Ty::Double | Ty::Duration | Ty::Timestamp => 1,
        Ty::Ip | Ty::Cidr | Ty::Quantity => 1,
        Ty::Object(_) => 0,
        _ => decl.max,
    }
}

/// Steps of `==` and `!=`, and of `<` and the like between texts: the shorter one is walked.
pub(crate) fn comparison(left: &SizedType, right: &SizedType) -> u64 {
    tenth(size(left).min(size(right)))
}

/// Steps of `in`: every item of a list, or one look into a map.
pub(crate) fn search(within: &SizedType) -> u64 {
    if matches!(within.ty, Ty::Map(..)) { 1 } else { size(within) }
}

/// Steps of `+` and other arithmetic with a result of type `ty` and at most `sum` elements.
pub(crate) fn arithmetic(ty: &Ty, sum: u64) -> u64 {
    if matches!(ty, Ty::Text | Ty::Bytes) { tenth(sum) } else { 1 }
}

/// Steps of a function, besides those of its target, if there is one, and of its arguments.
pub(crate) fn function(name: &str, target: Option<&SizedType>, args: &[SizedType]) -> u64 {
    let part = |at: usize| target.into_iter().chain(args).nth(at);
    let size = |at: usize| part(at).map_or(1, size);
    let is = |wanted: &Ty| part(0).is_some_and(|part| part.ty.letter() == wanted.letter());
    match name {
        "matches" | "find" | "findAll" => {
            tenth(size(0).saturating_add(1)).saturating_mul(size(1).div_ceil(4))
        }
        "contains" => tenth(size(0)).saturating_mul(tenth(size(1))),
        "startsWith" | "endsWith" => tenth(size(1)),
        "bytes" if is(&Ty::Text) => tenth(size(0)),
        "string" if is(&Ty::Bytes) => tenth(size(0)),
        "lowerAscii" | "upperAscii" | "trim" | "substring" | "url" => tenth(size(0)),
        "split" | "replace" => size(0).div_ceil(5),
        "join" => {
            let (items, separator) = (size(0), if args.is_empty() { 0 } else { size(1) });
            let each = part(0).map_or(0, item_size);
            let between = items.saturating_sub(1).saturating_mul(separator);
            tenth(items.saturating_mul(each).saturating_add(between))
        }
        "isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf" => match part(0) {
            Some(SizedType { ty: Ty::List(item), .. }) => {
                let walked =
                    if matches!(item.ty, Ty::Text | Ty::Bytes) { tenth(item.max) } else { 0 };
                size(0).saturating_mul(walked.saturating_add(1))
            }
            _ => tenth(size(0)),
        },
        // The method of a block; the function reads a text.
        "ip" if target.is_some() => 1,
        "ip" | "isIP" | "cidr" | "isCIDR" | "quantity" | "isQuantity" => tenth(size(0)),
        "ip.isCanonical" => size(0).div_ceil(5),
        "containsIP" | "containsCIDR" => {
            let text = part(1).filter(|part| matches!(part.ty, Ty::Text | Ty::Dyn));
            let compared = if name == "containsIP" { CONTAINS_IP } else { CONTAINS_CIDR };
            text.map_or(0, |_| tenth(size(1))).saturating_add(compared)
        }
        "validate" => tenth(size(1)).saturating_mul(FORMAT),
        "check" => CHECK,
        _ => 1,
    }
}

fn item_size(list: &SizedType) -> u64 {
    match &list.ty {
        Ty::List(item) => size(item),
        _ => list.max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(max: u64) -> SizedType {
        SizedType::new(Ty::Text, max, 2)
    }

    #[test]
    fn functions_cost_what_they_do_in_kubernetes() {
        let numbers = SizedType::list(SizedType::plain(Ty::Int), 7);
        let texts = SizedType::list(text(25), 7);
        for (name, target, args, expected) in [
            ("size", Some(text(1_000)), vec![], 1),
            ("duration", None, vec![text(1_000)], 1),
            ("int", None, vec![text(1_000)], 1),
            ("isURL", None, vec![text(1_000)], 1),
            ("string", None, vec![text(1_000)], 1),
            ("bytes", None, vec![text(1_001)], 101),
            ("url", None, vec![text(1_001)], 101),
            ("trim", Some(text(1_001)), vec![], 101),
            ("split", Some(text(1_001)), vec![text(1)], 201),
            ("startsWith", Some(text(1_000)), vec![text(11)], 2),
            ("startsWith", Some(text(1_000)), vec![text(0)], 0),
            ("contains", Some(text(1_000)), vec![text(11)], 200),
            ("contains", Some(text(0)), vec![text(11)], 0),
            ("matches", Some(text(0)), vec![text(40)], 10),
            ("find", Some(text(9)), vec![text(40)], 10),
            ("sum", Some(numbers), vec![], 7),
            ("isSorted", Some(texts.clone()), vec![], 28),
            ("indexOf", Some(text(100)), vec![text(1)], 10),
            ("join", Some(texts), vec![text(2)], 19),
            ("isIP", None, vec![text(1_001)], 101),
            ("ip", None, vec![text(11)], 2),
            ("ip", Some(SizedType::plain(Ty::Cidr)), vec![], 1),
            ("ip.isCanonical", None, vec![text(11)], 3),
            ("family", Some(SizedType::plain(Ty::Ip)), vec![], 1),
            ("cidr", None, vec![text(14)], 2),
            ("containsIP", Some(SizedType::plain(Ty::Cidr)), vec![SizedType::plain(Ty::Ip)], 4),
            ("containsIP", Some(SizedType::plain(Ty::Cidr)), vec![text(11)], 6),
            ("containsCIDR", Some(SizedType::plain(Ty::Cidr)), vec![SizedType::plain(Ty::Cidr)], 7),
            ("containsCIDR", Some(SizedType::plain(Ty::Cidr)), vec![text(12)], 9),
            ("format.named", None, vec![text(1_000)], 1),
            ("format.uri", None, vec![], 1),
            ("validate", Some(SizedType::plain(Ty::Format)), vec![text(252)], 832),
            ("quantity", None, vec![text(4)], 1),
            ("add", Some(SizedType::plain(Ty::Quantity)), vec![], 1),
        ] {
            assert_eq!(
                function(name, target.as_ref(), &args),
                expected,
                "{name} {target:?} {args:?}"
            );
        }
    }

    #[test]
    fn what_has_fields_is_compared_for_nothing() {
        let object = SizedType::new(Ty::Object(std::sync::Arc::default()), 5, 2);
        let flag = SizedType::plain(Ty::Bool);
        let address = SizedType::plain(Ty::Ip);
        assert_eq!(comparison(&address, &address), 1);
        assert_eq!(comparison(&object, &object), 0);
        assert_eq!(comparison(&flag, &flag), 1);
        assert_eq!(comparison(&text(0), &text(1_000)), 0);
        assert_eq!(comparison(&text(500), &text(1_000)), 50);
        assert_eq!(search(&SizedType::list(text(5), 30)), 30);
    }
}
