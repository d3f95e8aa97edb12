//! Policies around a policy, which hear its calls.

/// Implements the methods of [`Policy`](crate::Policy) that are named by those of a policy within.
///
/// A wrapper that leaves one out gets its default instead, which says nothing of the policy within:
/// so `#[deny(clippy::missing_trait_methods)]` belongs on the implementation.
///
/// ```
/// use pagekeeper_policy::{Admission, Page, Place, Policy, pass_on};
///
/// struct Counted<P>(P, u64);
///
/// #[deny(clippy::missing_trait_methods)]
/// impl<P: Policy> Policy for Counted<P> {
///     pass_on! { this => this.0;
///         wants_places wants_indices wants_references wants_samples wants_dirty gives_hints
///         watches_closely watches_pages watches watches_others unmapped mapped placed spared
///         referenced sampled removed dirtied cleaned take_hints order victim resized fitted
///         resident visible
///     }
///
///     fn admitted(&mut self, page: Page, how: Admission) {
///         self.1 += 1;
///         self.0.admitted(page, how);
///     }
/// }
/// ```
#[macro_export]
macro_rules! pass_on {
    ($this:ident => $policy:expr; $($method:ident)*) => {
        $($crate::pass_on! { @$method $this $policy })*
    };
    (@wants_places $($to:tt)*) => { $crate::pass_on! { @as &self wants_places() -> bool, $($to)* } };
    (@wants_indices $($to:tt)*) => { $crate::pass_on! { @as &self wants_indices() -> bool, $($to)* } };
    (@wants_references $($to:tt)*) => {
        $crate::pass_on! { @as &self wants_references() -> bool, $($to)* }
    };
    (@wants_samples $($to:tt)*) => {
        $crate::pass_on! { @as &self wants_samples() -> bool, $($to)* }
    };
    (@wants_dirty $($to:tt)*) => { $crate::pass_on! { @as &self wants_dirty() -> bool, $($to)* } };
    (@gives_hints $($to:tt)*) => { $crate::pass_on! { @as &self gives_hints() -> bool, $($to)* } };
    (@watches_closely $($to:tt)*) => {
        $crate::pass_on! { @as &self watches_closely() -> bool, $($to)* }
    };
    (@watches_pages $($to:tt)*) => {
        $crate::pass_on! { @as &self watches_pages() -> bool, $($to)* }
    };
    (@watches $($to:tt)*) => {
        $crate::pass_on! { @as &mut self watches(page: $crate::Page) -> bool, $($to)* }
    };
    (@watches_others $($to:tt)*) => {
        $crate::pass_on! { @as &mut self watches_others() -> bool, $($to)* }
    };
    (@unmapped $($to:tt)*) => { $crate::pass_on! { @of_page unmapped, $($to)* } };
    (@mapped $($to:tt)*) => { $crate::pass_on! { @of_page mapped, $($to)* } };
    (@placed $($to:tt)*) => {
        $crate::pass_on! {
            @as &mut self placed(page: $crate::Page, place: $crate::Place) -> (), $($to)*
        }
    };
    (@admitted $($to:tt)*) => {
        $crate::pass_on! {
            @as &mut self admitted(page: $crate::Page, how: $crate::Admission) -> (), $($to)*
        }
    };
    (@spared $($to:tt)*) => { $crate::pass_on! { @of_page spared, $($to)* } };
    (@referenced $($to:tt)*) => { $crate::pass_on! { @of_page referenced, $($to)* } };
    (@sampled $($to:tt)*) => { $crate::pass_on! { @of_page sampled, $($to)* } };
    (@removed $($to:tt)*) => { $crate::pass_on! { @of_page removed, $($to)* } };
    (@dirtied $($to:tt)*) => { $crate::pass_on! { @of_page dirtied, $($to)* } };
    (@cleaned $($to:tt)*) => { $crate::pass_on! { @of_page cleaned, $($to)* } };
    (@take_hints $($to:tt)*) => {
        $crate::pass_on! {
            @as &mut self take_hints(hints: &mut Vec<$crate::Hint>) -> (), $($to)*
        }
    };
    (@order $($to:tt)*) => {
        $crate::pass_on! { @as &self order() -> Option<Vec<$crate::Page>>, $($to)* }
    };
    (@victim $($to:tt)*) => {
        $crate::pass_on! {
            @as &mut self victim(incoming: Option<$crate::Page>) -> Option<$crate::Page>, $($to)*
        }
    };
    (@resized $($to:tt)*) => {
        $crate::pass_on! { @as &mut self resized(frames: u32) -> (), $($to)* }
    };
    (@fitted $($to:tt)*) => {
        $crate::pass_on! { @as &mut self fitted(frames: u32, most: u32) -> (), $($to)* }
    };
    (@resident $($to:tt)*) => { $crate::pass_on! { @as &self resident() -> u32, $($to)* } };
    (@visible $($to:tt)*) => {
        $crate::pass_on! { @as &mut self visible() -> Option<&mut dyn $crate::Visible>, $($to)* }
    };
    (@of_page $method:ident, $($to:tt)*) => {
        $crate::pass_on! { @as &mut self $method(page: $crate::Page) -> (), $($to)* }
    };
    (@as &self $method:ident() -> $answer:ty, $this:ident $policy:expr) => {
        #[inline]
        fn $method(&self) -> $answer {
            let $this = self;
            $policy.$method()
        }
    };
    (@as &mut self $method:ident($($name:ident: $type:ty),*) -> $answer:ty,
        $this:ident $policy:expr) => {
        #[inline]
        fn $method(&mut self, $($name: $type),*) -> $answer {
            let $this = self;
            $policy.$method($($name),*)
        }
    };
}
