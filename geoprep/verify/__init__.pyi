from .store_check import VerifyReport as VerifyReport
from .store_check import verify as verify
