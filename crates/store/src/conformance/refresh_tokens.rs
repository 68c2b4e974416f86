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
    assert_eq!(store.refresh_token(ann).unwrap().as_ref(), Some(&second));
    assert_eq!(store.refresh_token(bob).unwrap(), Some(first.clone()));
    // One that was replaced meanwhile, or removed, has no next one.
    let third = RefreshToken::new("third".to_owned());
    store.replace_refresh_token(ann, &first, &third).unwrap();
    assert_eq!(store.refresh_token(ann).unwrap().as_ref(), Some(&second));
    store.replace_refresh_token(ann, &second, &third).unwrap();
    assert_eq!(store.refresh_token(ann).unwrap(), Some(third));
    assert_eq!(store.refresh_token(bob).unwrap().as_ref(), Some(&first), "another user's");
    store.keep_refresh_token(bob, None).unwrap();
    store.replace_refresh_token(bob, &first, &second).unwrap();
    assert_eq!(store.refresh_token(bob).unwrap(), None);
    store.remove_user("ann", 2).unwrap();
    assert_eq!(store.refresh_token(ann).unwrap(), None);
    store.keep_refresh_token(UserId([9; 16]), Some(&first)).unwrap();
    assert_eq!(store.refresh_token(UserId([9; 16])).unwrap(), None, "of nobody");
    assert!(!format!("{first:?}").contains("first"));
}
