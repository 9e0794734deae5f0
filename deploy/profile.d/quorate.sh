# For login shells: puts `quorate`, and an `etcdctl` that knows this node's cluster, on the PATH. Goes to /etc/profile.d/.
# The two lie in /usr/lib/quorate/bin (deploy/bin/etcdctl, and a link to the program); nothing is done where they do not.
quorate_bin="${QUORATE_ROOT:-}/usr/lib/quorate/bin"
if [ -d "$quorate_bin" ]; then
  case ":$PATH:" in
    *":$quorate_bin:"*) ;;
    *)
      PATH="$quorate_bin:$PATH"
      export PATH
      ;;
  esac
fi
unset quorate_bin
