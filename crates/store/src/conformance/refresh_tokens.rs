//! Behaviour of [`crate::RefreshTokens`].

use super::{Stand, named};
use crate::{RefreshToken, UserId};

pub(crate) fn a_refresh_token_is_the_latest_of_its_user_and_goes_with_the_user(stand: &dyn Stand) {
    let store = stand.open();
    let (ann, bob) = (store.add_user(&named("ann"), 1).unwrap(), store.add_user(&named("bob"), 1).unwrap());
    let [first, second] = ["first", "second"].map(|text| RefreshToken::new(text.to_owned()));
    assert_eq!(store.refresh_token(ann).unwrap(), None);
    store.keep_refresh_token(ann, Some(&first)).unwrap();
    store.keep_refresh_token(bob, Some(&first)).unwrap();
    store.keep_refresh_token(ann, Some(&second)).unwrap();
    drop(store);
    let store = stand.open();
    assert_eq!(store.refresh_token(ann).unwrap(), Some(second));
    assert_eq!(store.refresh_token(bob).unwrap(), Some(first.clone()));
    store.keep_refresh_token(bob, None).unwrap();
    assert_eq!(store.refresh_token(bob).unwrap(), None);
    store.remove_user("ann", 2).unwrap();
    assert_eq!(store.refresh_token(ann).unwrap(), None);
    store.keep_refresh_token(UserId([9; 16]), Some(&first)).unwrap();
    assert_eq!(store.refresh_token(UserId([9; 16])).unwrap(), None, "of nobody");
    assert!(!format!("{first:?}").contains("first"));
}
