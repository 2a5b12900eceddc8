//! Bounds of the objects that requests bring or make, and of patches.

use super::{DecodeError, DecodedObject, Problems};
use crate::object::Object;
use crate::patch::PatchError;
use crate::value::{
    MAPS_IN_LISTS_MAX, ParseError, Reading, TooLarge, Value, WEIGHT_MAX, maps_in_lists,
    parse_json_within, weigh,
};

/// The object, unless it has too many values. One that a request has not made larger than it was stays as it is: it can be made smaller.
pub(super) fn within_bounds(
    decoded: DecodedObject,
    old: Option<&Object>,
) -> Result<DecodedObject, DecodeError> {
    let exceeds = |measure: &dyn Fn(&Object) -> usize, max: usize| {
        let have = measure(&decoded.object);
        have > max && old.is_none_or(|old| have > measure(old))
    };
    if exceeds(&|object: &Object| weigh(&object.fields), WEIGHT_MAX) {
        return Err(TooLarge::Values.into());
    }
    let outside_metadata = |object: &Object| {
        let fields = object.fields.iter().filter(|(name, _)| *name != "metadata");
        fields.map(|(_, value)| maps_in_lists(value)).fold(0, usize::saturating_add)
    };
    // The defaults of custom kinds have a bound of their own.
    if decoded.object.kind.custom().is_none() && exceeds(&outside_metadata, MAPS_IN_LISTS_MAX) {
        return Err(TooLarge::MapsInLists.into());
    }
    Ok(decoded)
}

/// A patch, unless it has too many values.
pub(super) fn parse_patch(body: &[u8]) -> Result<(Value, Problems), PatchError> {
    let reading = Reading::of_body();
    let patch = parse_json_within(body, &reading).map_err(|error| match error {
        ParseError::TooLarge(error) => PatchError::TooLarge(error),
        ParseError::Malformed(why) => PatchError::Malformed(why),
    })?;
    let duplicates = reading.duplicates.into_inner();
    Ok((patch, Problems { duplicates, ..Problems::default() }))
}
